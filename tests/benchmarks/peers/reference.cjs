// Records so many steps in the reference engine's in-memory driver, replays them, and prints what an entry costs.
const { createRequire } = require("node:module");
const from = createRequire(`${process.cwd()}/`);
const engine = (() => {
  try {
    return from("@rivetkit/workflow-engine/testing");
  } catch {
    return require("@rivetkit/workflow-engine/testing");
  }
})();

const count = Number(process.argv[2]);

async function many(ctx) {
  for (let number = 0; number < count; number += 1) {
    await ctx.step(`step-${number}`, async () => "x".repeat(30));
  }
  await ctx.sleep("sleep", 30 * 24 * 3600 * 1000);
}

async function main() {
  const driver = new engine.InMemoryDriver();
  driver.latency = 0;
  await engine.runWorkflow("run", many, null, driver).result;
  const start = process.hrtime.bigint();
  await engine.runWorkflow("run", many, null, driver).result;
  const replayed = Number(process.hrtime.bigint() - start) / 1000 / count;
  console.log(JSON.stringify({ [`reference replay of ${count.toLocaleString("en")}`]: replayed }));
}

main();
