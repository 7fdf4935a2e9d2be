// Keeps the element [data-live] of a run's page up to date. Asks only while the page is seen, less often while nothing
// changes, and no more once the run has ended. Without this module the page works the same, one reload at a time.

const SHORTEST = 500;
const LONGEST = 8000;

const live = document.querySelector("[data-live]");
const spoken = document.querySelector("[data-spoken]"); // for those who listen: the headline alone, when it changes
let delay = SHORTEST;
let timer;
let asking = false;

const ended = () => live.querySelector("[data-ended]") !== null;

function schedule() {
  clearTimeout(timer);
  if (!document.hidden && !ended()) timer = setTimeout(refresh, delay);
}

async function refresh() {
  if (asking) return;
  asking = true;
  try {
    const url = new URL(live.dataset.live, location.href);
    url.searchParams.set("version", live.dataset.version);
    const answer = await fetch(url, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(LONGEST) });
    if (answer.status === 200) {
      show(await answer.text(), answer.headers.get("X-Version"));
      delay = SHORTEST;
    } else {
      delay = Math.min(delay * (answer.ok ? 1.3 : 2), LONGEST);
    }
  } catch {
    delay = Math.min(delay * 2, LONGEST); // the server is away; it will be back
  } finally {
    asking = false;
    schedule();
  }
}

function show(html, version) {
  const focused = document.activeElement?.id;
  live.innerHTML = html;
  live.dataset.version = version;
  const headline = live.querySelector(".headline").textContent;
  if (spoken.textContent !== headline) spoken.textContent = headline;
  if (focused && live.querySelector(`#${CSS.escape(focused)}`)) document.getElementById(focused).focus();
}

document.addEventListener("visibilitychange", () => {
  delay = SHORTEST;
  if (document.hidden) clearTimeout(timer);
  else schedule();
});

schedule();
