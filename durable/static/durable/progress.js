// Keeps the bars of {% durable_progress run %} up to date. It only reads: signed addresses that show no more than a bar.
(() => {
  "use strict";

  if (window.durableProgress) {
    return; // a page with several bars has this script several times
  }
  window.durableProgress = true;

  const FIRST = 1000;
  const LONGEST = 10000;

  const draw = (bar, shown) => {
    const part = bar.querySelector("[data-durable-part]");
    part.hidden = shown.part === null;
    if (shown.part !== null) {
      part.value = shown.part;
      part.textContent = shown.numbers;
    }
    const text = bar.querySelector("[data-durable-text]");
    const words = shown.text || shown.state_in_words;
    if (text.textContent !== words) {
      text.textContent = words; // only then: a screen reader reads what changes
    }
    bar.querySelector("[data-durable-numbers]").textContent = shown.numbers;
    const state = bar.querySelector("[data-durable-state]");
    if (state && shown.has_ended) {
      state.textContent = shown.text ? shown.state_in_words : ""; // else it is the text already
    }
  };

  const follow = (bar) => {
    let pause = FIRST;
    let last = "";
    const look = async () => {
      if (document.hidden) {
        setTimeout(look, pause);
        return;
      }
      try {
        const answer = await fetch(bar.dataset.durableProgress, {
          headers: { Accept: "application/json" },
          credentials: "omit",
          cache: "no-store",
        });
        if (answer.status === 404 || answer.status === 410) {
          return; // the run is gone, or the address has expired
        }
        if (answer.ok) {
          const shown = await answer.json();
          draw(bar, shown);
          const now = JSON.stringify(shown);
          pause = now === last ? Math.min(pause * 1.5, LONGEST) : FIRST;
          last = now;
          if (shown.has_ended) {
            bar.setAttribute("data-durable-ended", shown.state);
            bar.dispatchEvent(new CustomEvent("durable:ended", { bubbles: true, detail: shown }));
            return;
          }
        }
      } catch {
        pause = LONGEST; // the network is away: look again later
      }
      setTimeout(look, pause);
    };
    setTimeout(look, pause);
  };

  document.querySelectorAll("[data-durable-progress]:not([data-durable-ended])").forEach(follow);
})();
