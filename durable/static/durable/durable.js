// Keeps the parts of a page marked data-durable-live up to date, shows what running steps emit, tells times from now, sends
// a form once, and copies.
//
// A part is asked for while the page is seen, less and less often while nothing changes, and no more once the run has
// ended. The server answers 304 as long as its ETag is ours. Without this module every page works the same, one reload at a time.

const SHORTEST = 1000;
// Texts in the language of the page: the server has rendered them.
const words = document.querySelector("meta[name=durable-words]").dataset;
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
      if (!document.hidden) say(words.away);
    } finally {
      this.isAsking = false;
      this.schedule();
    }
  }

  // Patched in place: what is selected, scrolled, focused, opened or closed stays so.
  show(html, etag) {
    const spoken = this.element.querySelector("[data-durable-spoken]")?.textContent;
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    patchChildren(this.element, fresh.content);
    this.etag = etag;
    const now = this.element.querySelector("[data-durable-spoken]");
    const isNew = now && now.textContent !== spoken; // of the times in it alone nothing is said
    addCopiers(this.element);
    listen(this.element);
    tellTimes();
    if (isNew) announce(now.textContent);
  }
}

// -- patching

// Times from now, and how long something has lasted.
const COUNTED = "[data-durable-relative], [data-durable-elapsed]";
// What steps emit.
const EMITTED = "[data-durable-stream]";
// The texts that this module writes.
const WRITTEN_HERE = `${COUNTED}, ${EMITTED}`;

const NEAR = 30; // siblings that are compared to find out whether something was added or has gone

// Makes the children of an element those of another, and keeps each node that is still there.
function patchChildren(element, fresh) {
  const keyed = new Map([...element.children].filter(keyOf).map((each) => [keyOf(each), each]));
  const wanted = new Set([...fresh.children].map(keyOf).filter(Boolean));
  let at = theirs(element.firstChild);
  for (const node of [...fresh.childNodes]) {
    const kept = keyOf(node) ? keyed.get(keyOf(node)) : counterpart(at, node);
    if (!kept || !isAlike(kept, node)) {
      element.insertBefore(node, at);
      continue;
    }
    while (at && at !== kept && !wanted.has(keyOf(at))) at = removed(at);
    if (at === kept) at = theirs(kept.nextSibling);
    else element.insertBefore(kept, at); // it has another place among its siblings
    patch(kept, node);
  }
  while (at) at = removed(at);
}

function patch(node, fresh) {
  if (node.nodeType !== Node.ELEMENT_NODE) {
    if (node.nodeValue !== fresh.nodeValue) node.nodeValue = fresh.nodeValue;
    return;
  }
  if (node.isEqualNode(fresh)) return;
  for (const { name } of [...node.attributes]) {
    if (!fresh.hasAttribute(name) && !isOfTheReader(node, name)) node.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (node.getAttribute(name) !== value && !isOfTheReader(node, name)) node.setAttribute(name, value);
  }
  if (!fresh.matches(WRITTEN_HERE)) patchChildren(node, fresh);
}

// The node from `at` on that `node` replaces, or undefined if it is new.
function counterpart(at, node) {
  for (let each = at, near = 0; each && near < NEAR; each = theirs(each.nextSibling), near += 1) {
    if (each.isEqualNode(node)) return each;
  }
  if (!at || keyOf(at) || !isAlike(at, node)) return undefined;
  for (let each = node.nextSibling, near = 0; each && near < NEAR; each = each.nextSibling, near += 1) {
    if (at.nodeType === Node.ELEMENT_NODE && each.isEqualNode(at)) return undefined; // it was added before that one
  }
  return at;
}

function isAlike(one, other) {
  return one.nodeName === other.nodeName && keyOf(one) === keyOf(other);
}

function keyOf(node) {
  return (node && node.id) || node?.dataset?.durableKey || "";
}

function isOfTheReader(node, name) {
  return name === "open" && node.nodeName === "DETAILS";
}

// The first of the siblings from `node` on that the server has sent: buttons of this module stay where they are.
function theirs(node) {
  let each = node;
  while (each?.classList?.contains("durable-copier")) each = each.nextSibling;
  return each;
}

// Removes the node, with the button beside it, and returns the next.
function removed(node) {
  while (node.nextSibling?.classList?.contains("durable-copier")) node.nextSibling.remove();
  const next = node.nextSibling;
  node.remove();
  return next;
}

// -- what running steps emit

const MOST_EMITTED = 20000; // characters, the newest

class Emitted {
  constructor(element) {
    this.element = element;
    this.after = "";
    this.watch = () => this.go();
    document.addEventListener("visibilitychange", this.watch);
    this.go();
  }

  // Asks while the page is seen and has the element.
  go() {
    this.source?.close();
    if (!this.element.isConnected) document.removeEventListener("visibilitychange", this.watch);
    else if (!document.hidden && this.after !== "end") this.open();
  }

  open() {
    const url = new URL(this.element.dataset.durableStream, location.href);
    if (this.after) url.searchParams.set("after", this.after);
    this.source = new EventSource(url);
    this.source.addEventListener("chunk", (event) => this.take(event, this.text + JSON.parse(event.data).value));
    this.source.addEventListener("restart", (event) => this.take(event, ""));
    for (const last of ["result", "failed"]) this.source.addEventListener(last, (event) => this.take(event, this.text));
    this.source.addEventListener("error", () => !this.element.isConnected && this.go());
  }

  get text() {
    return this.element.textContent;
  }

  take(event, text) {
    const { element } = this;
    const isAtEnd = element.scrollTop + element.clientHeight >= element.scrollHeight - 4;
    element.textContent = text.slice(-MOST_EMITTED);
    if (isAtEnd) element.scrollTop = element.scrollHeight;
    this.after = event.lastEventId;
    if (this.after === "end") this.go();
  }
}

const listening = new WeakSet();

function listen(inside) {
  for (const element of inside.querySelectorAll(EMITTED)) {
    if (!listening.has(element)) new Emitted(element);
    listening.add(element);
  }
}

// -- times from now

const UNITS = [
  [86400, words.day],
  [3600, words.hour],
  [60, words.minute],
  [1, words.second],
];
// How far the server's clock is ahead of the browser's, in milliseconds.
const ahead = Date.parse(document.querySelector("meta[name=durable-now]")?.content) - Date.now() || 0;

// As durable.inspection.humanize.relative tells it.
function relative(seconds, units) {
  const size = Math.abs(seconds);
  if (size < 1) return words.now;
  return fill(seconds > 0 ? words.in : words.ago, elapsed(size, units));
}

function elapsed(seconds, units) {
  const size = Math.abs(seconds);
  return size < 10 ? fill(words.second, tenths(size)) : span(Math.round(size), units);
}

function tenths(size) {
  return size.toFixed(1).replace(/\.0$/, "").replace(".", words.decimal);
}

function fill(text, value) {
  return text.replace("%s", () => value);
}

function span(seconds, units) {
  const first = UNITS.findIndex(([size]) => seconds >= size);
  let left = seconds;
  const parts = UNITS.slice(first, first + units).map(([size, unit]) => {
    const number = Math.floor(left / size);
    left %= size;
    return number ? fill(unit, number) : "";
  });
  return parts.filter(Boolean).join(" ");
}

function tellTimes() {
  if (document.hidden) return;
  const selection = getSelection();
  for (const element of document.querySelectorAll(COUNTED)) {
    const seconds = (Date.parse(element.closest("time").dateTime) - Date.now() - ahead) / 1000;
    const rounded = Math.abs(seconds) < 10 ? Math.trunc(seconds) : seconds;
    const { durableRelative, durableElapsed } = element.dataset;
    const text = durableElapsed ? elapsed(rounded, Number(durableElapsed)) : relative(rounded, Number(durableRelative));
    const isSelected = !selection.isCollapsed && selection.containsNode(element, true);
    if (element.textContent !== text && !isSelected) element.textContent = text;
  }
}

setInterval(tellTimes, 1000);

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
    addCopier(code, () => fill(words.copyOf, code.textContent), () => navigator.clipboard.writeText(code.textContent));
  }
  for (const link of inside.querySelectorAll("a[data-durable-text]")) {
    const text = async () => new Blob([await (await fetch(link.href)).text()], { type: "text/plain" });
    const copy = () => navigator.clipboard.write([new ClipboardItem({ "text/plain": text() })]);
    addCopier(link, () => words.copyAll, copy);
  }
}

// Adds a button after the element, once.
function addCopier(element, label, copy) {
  if (element.nextElementSibling?.matches(".durable-copier")) return;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "durable-copier";
  button.textContent = words.copy;
  button.setAttribute("aria-label", label());
  button.addEventListener("click", async () => {
    await copy();
    button.textContent = words.copied;
  });
  element.after(button);
}

// The button of a bulk says how many runs are tried first: as many as the field has.
for (const button of document.querySelectorAll("[data-durable-first]")) {
  const field = button.form.elements.first;
  field?.addEventListener("input", () => {
    if (field.value) button.value = button.dataset.durableFirst.replace("%s", field.value);
  });
}

for (const form of document.querySelectorAll("form[data-durable-once]")) {
  form.addEventListener("submit", () => {
    for (const button of form.querySelectorAll("input[type=submit]")) setTimeout(() => (button.disabled = true));
  });
}
addEventListener("pageshow", () => {
  for (const button of document.querySelectorAll("form[data-durable-once] input[type=submit]")) button.disabled = false;
});

// Moments are told in the zone of the browser. The server learns it from a cookie, so the first page is asked for once more.
// A page that answers a POST has no data-zone: to ask for it once more would post again.
function tellZone() {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const told = () => document.cookie.split("; ").find((each) => each.startsWith("durable_zone="))?.slice(13);
  if (!zone || !words.zone || (told() ?? words.zone) === zone) return;
  const secure = location.protocol === "https:" ? "; Secure" : "";
  document.cookie = `durable_zone=${zone}; Path=${words.root}; Max-Age=31536000; SameSite=Lax${secure}`;
  if (told() === zone) location.reload();
}

tellZone();
document.querySelector("main")?.append(listener);
addCopiers(document);
listen(document);
for (const element of document.querySelectorAll("[data-durable-live]")) new Live(element);
