// Makes the list of runs quick: one box chooses a page, arrow keys go from row to row, and names are suggested.
//
// Without this module the list works the same: a box for each run, one for all that the filter finds, and plain inputs.

const table = () => document.querySelector("[data-durable-rows]");

// -- choosing runs

function boxes() {
  return [...table().querySelectorAll("input[name=id]")];
}

function tellChosen() {
  const all = table()?.querySelector("[data-durable-all]");
  if (!all) return;
  const every = boxes();
  const chosen = every.filter((each) => each.checked).length;
  all.hidden = every.length === 0;
  all.checked = chosen > 0 && chosen === every.length;
  all.indeterminate = chosen > 0 && chosen < every.length;
  const words = document.querySelector("[data-durable-chosen]");
  if (!words) return; // no run, or no verb
  const text = chosen ? words.dataset.durableChosen.replace("%s", chosen) : "";
  if (words.textContent !== text) words.textContent = text;
}

let last; // the box that was clicked last, for a range

document.addEventListener("click", (event) => {
  if (!event.target.matches?.("[data-durable-rows] input[name=id]")) return;
  const every = boxes();
  if (event.shiftKey && every.includes(last)) {
    const [from, to] = [every.indexOf(last), every.indexOf(event.target)].sort((one, other) => one - other);
    for (const each of every.slice(from, to + 1)) each.checked = event.target.checked;
  }
  last = event.target;
  tellChosen();
});

document.addEventListener("change", (event) => {
  if (!event.target.matches?.("[data-durable-all]")) return;
  for (const each of boxes()) each.checked = event.target.checked;
  tellChosen();
});

// -- rows: the stops are the box and the link of one row

const COLUMNS = ["input[name=id]", "th[scope=row] a"];

let row; // the row in which the stops are

function settle() {
  const rows = [...table().querySelectorAll("tbody tr")].filter((each) => each.querySelector(COLUMNS[1]));
  row = rows.find((each) => each.contains(document.activeElement)) || (rows.includes(row) ? row : rows[0]);
  for (const selector of COLUMNS) {
    for (const each of table().querySelectorAll(selector)) {
      const wanted = row.contains(each) ? 0 : -1;
      if (each.tabIndex !== wanted) each.tabIndex = wanted;
    }
  }
  tellChosen();
}

document.addEventListener("focusin", (event) => {
  if (table()?.contains(event.target) && COLUMNS.some((each) => event.target.matches(each))) settle();
});

document.addEventListener("keydown", (event) => {
  const selector = COLUMNS.find((each) => table()?.contains(event.target) && event.target.matches(each));
  if (!selector || event.altKey || event.ctrlKey || event.metaKey) return;
  const stops = [...table().querySelectorAll(selector)];
  const at = stops.indexOf(event.target);
  const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: stops.length - 1 }[event.key];
  if (next === undefined || !stops[next]) return;
  event.preventDefault();
  stops[next].focus();
});

// -- names

const PAUSE = 150; // milliseconds between a key and the question

for (const input of document.querySelectorAll("input[data-durable-names]")) {
  const known = document.getElementById(input.getAttribute("list"));
  let timer;
  let asked = 0;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(suggest, PAUSE);
  });

  async function suggest() {
    const number = (asked += 1);
    const url = new URL(known.dataset.durableKnown, location.href);
    url.searchParams.set("q", input.value);
    try {
      const answer = await fetch(url, { redirect: "error" });
      if (!answer.ok || number !== asked) return;
      const { names } = await answer.json();
      known.replaceChildren(...names.map((name) => Object.assign(document.createElement("option"), { value: name })));
    } catch {
      // The suggestions of the page stay.
    }
  }
}

// -- a details with a panel closes with Escape

document.addEventListener("keydown", (event) => {
  const panel = event.key === "Escape" && event.target.closest?.("details.durable-add[open]");
  if (!panel) return;
  panel.open = false;
  panel.querySelector("summary").focus();
});

if (table()) {
  settle();
  new MutationObserver(settle).observe(table().parentElement, { childList: true, subtree: true, attributeFilter: ["hidden", "tabindex"] });
}
