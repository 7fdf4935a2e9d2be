// Keeps the parts of a page marked data-durable-live up to date, sends a form once, and copies commands.
//
// A part is asked for while the page is seen, less and less often while nothing changes, and no more once the run has
// ended. The server answers 304 as long as its ETag is ours. Without this module every page works the same, one reload at a time.

const SHORTEST = 1000;
const LONGEST = 15000;

class Live {
  constructor(element) {
    this.element = element;
    this.etag = element.dataset.durableEtag || "";
    this.shortest = Number(element.dataset.durablePace) || SHORTEST;
    this.delay = this.shortest;
    this.timer = undefined;
    this.isAsking = false;
    document.addEventListener("visibilitychange", () => {
      this.delay = this.shortest;
      this.schedule();
    });
    this.schedule();
  }

  get hasEnded() {
    return this.element.querySelector("[data-durable-ended]") !== null;
  }

  get isHeld() {
    const selector = this.element.dataset.durablePause;
    return Boolean(selector && this.element.querySelector(selector));
  }

  schedule() {
    clearTimeout(this.timer);
    if (!document.hidden && !this.hasEnded) this.timer = setTimeout(() => this.refresh(), this.delay);
  }

  async refresh() {
    if (this.isAsking) return;
    this.isAsking = true;
    try {
      if (this.isHeld) return;
      const url = new URL(this.element.dataset.durableLive, location.href);
      const answer = await fetch(url, {
        headers: this.etag ? { "If-None-Match": this.etag } : {},
        redirect: "error", // to the login page: the session has ended
        cache: "no-store",
        signal: AbortSignal.timeout(LONGEST),
      });
      if (answer.status === 200) {
        const html = await answer.text();
        if (!this.isHeld) this.show(html, answer.headers.get("ETag") || "");
        this.delay = this.shortest;
      } else {
        this.delay = Math.min(this.delay * (answer.status === 304 ? 1.4 : 2), LONGEST);
      }
      say("");
    } catch {
      this.delay = Math.min(this.delay * 2, LONGEST);
      if (!document.hidden) say("This page is not up to date: the server does not answer, or your session has ended.");
    } finally {
      this.isAsking = false;
      this.schedule();
    }
  }

  // What was opened, closed or focused stays so.
  show(html, etag) {
    const opened = new Map([...this.element.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
    const focused = document.activeElement;
    const isInside = this.element.contains(focused);
    const mark = isInside ? focused.getAttribute("href") || focused.id : "";
    const spoken = this.element.querySelector("[data-durable-spoken]")?.textContent;
    this.element.innerHTML = html;
    this.etag = etag;
    for (const details of this.element.querySelectorAll("details[id]")) {
      if (opened.has(details.id)) details.open = opened.get(details.id);
    }
    if (mark) [...this.element.querySelectorAll("a, summary, input, [id]")].find((each) => each.getAttribute("href") === mark || each.id === mark)?.focus();
    const now = this.element.querySelector("[data-durable-spoken]")?.textContent;
    if (now && now !== spoken) announce(now);
    addCopiers(this.element);
  }
}

const listener = document.createElement("p");
listener.className = "durable-hidden";
listener.setAttribute("role", "status");

function announce(text) {
  listener.textContent = text;
}

let away;

function say(text) {
  if (!text) {
    away?.remove();
    away = undefined;
  } else if (!away) {
    away = document.createElement("p");
    away.className = "durable-away";
    away.setAttribute("role", "status");
    away.textContent = text;
    document.querySelector("main").append(away);
  }
}

function addCopiers(inside) {
  if (!navigator.clipboard) return;
  for (const code of inside.querySelectorAll("code.durable-copy")) {
    if (code.nextElementSibling?.matches(".durable-copier")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "durable-copier";
    button.textContent = "Copy";
    button.setAttribute("aria-label", `Copy ${code.textContent}`);
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    });
    code.after(button);
  }
}

for (const form of document.querySelectorAll("form[data-durable-once]")) {
  form.addEventListener("submit", () => {
    for (const button of form.querySelectorAll("input[type=submit]")) setTimeout(() => (button.disabled = true));
  });
}
addEventListener("pageshow", () => {
  for (const button of document.querySelectorAll("form[data-durable-once] input[type=submit]")) button.disabled = false;
});

document.querySelector("main")?.append(listener);
addCopiers(document);
for (const element of document.querySelectorAll("[data-durable-live]")) new Live(element);
