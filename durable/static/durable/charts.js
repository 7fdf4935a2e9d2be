// Reads charts aloud: what a bar says stands under the chart while the bar is pointed at or focused, and the arrow keys
// go from bar to bar, so that a chart is one stop of the keyboard. Without this module each bar is a link of its own.

function barsOf(chart) {
  return [...chart.querySelectorAll("svg a")];
}

function readoutOf(chart) {
  return chart.parentElement.querySelector("[data-durable-readout]");
}

function settle(chart, current) {
  const bars = barsOf(chart);
  const stop = current || bars.find((each) => each.getAttribute("tabindex") === "0") || bars.at(-1);
  for (const each of bars) {
    const wanted = each === stop ? "0" : "-1";
    if (each.getAttribute("tabindex") !== wanted) each.setAttribute("tabindex", wanted);
  }
}

function tell(event) {
  const bar = event.target.closest?.("[data-durable-chart] svg a");
  if (!bar) return;
  readoutOf(bar.closest("[data-durable-chart]")).textContent = bar.getAttribute("aria-label");
}

function forget(event) {
  const chart = event.target.closest?.("[data-durable-chart]");
  if (!chart || chart.contains(event.relatedTarget)) return;
  const readout = readoutOf(chart);
  readout.textContent = readout.dataset.durableRest;
}

document.addEventListener("pointerover", tell);
document.addEventListener("focusin", (event) => {
  tell(event);
  const bar = event.target.closest?.("[data-durable-chart] svg a");
  if (bar) settle(bar.closest("[data-durable-chart]"), bar);
});
document.addEventListener("pointerout", forget);
document.addEventListener("focusout", forget);

document.addEventListener("keydown", (event) => {
  const bar = event.target.closest?.("[data-durable-chart] svg a");
  if (!bar) return;
  const bars = barsOf(bar.closest("[data-durable-chart]"));
  const at = bars.indexOf(bar);
  const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: bars.length - 1 }[event.key];
  if (next === undefined || !bars[next]) return;
  event.preventDefault();
  bars[next].focus();
});

function settleAll() {
  for (const chart of document.querySelectorAll("[data-durable-chart]")) settle(chart);
}

settleAll();
// The charts of a live page are patched.
const live = document.querySelector("[data-durable-live]:has([data-durable-chart])");
if (live) new MutationObserver(settleAll).observe(live, { childList: true, subtree: true, attributeFilter: ["tabindex"] });
