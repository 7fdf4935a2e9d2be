/* Chooses the texts whose contrast axe has to look at, which takes it 2 ms a text and more.
 *
 * Of texts that look alike, on grounds that look alike, one is enough: tables have hundreds. What lies over other
 * elements, fields and their labels, and texts without letters, for which axe has other rules, are all chosen.
 */
window.chosen = (within, but) => {
  const numbers = new Map();
  const numbered = (...parts) => {
    const key = JSON.stringify(parts);
    if (!numbers.has(key)) numbers.set(key, numbers.size);
    return numbers.get(key);
  };
  const PAINT = ["backgroundColor", "backgroundImage", "backgroundSize", "opacity", "position", "zIndex", "float",
    "transform", "filter", "mixBlendMode", "overflowX", "overflowY", "clip", "clipPath", "visibility", "display"];
  const LETTERS = ["color", "webkitTextFillColor", "webkitTextStroke", "fontSize", "fontWeight", "textShadow"];
  const of = (style, names) => names.map((each) => style[each]);
  const grounds = new Map([[null, { number: 0, boxes: [], isAlone: false }]]);
  const ground = (element) => {
    if (grounds.has(element)) return grounds.get(element);
    const below = ground(element.parentElement), style = getComputedStyle(element);
    const around = ["::before", "::after"].map((each) => getComputedStyle(element, each))
      .map((each) => /^(none|normal)$/.test(each.content) ? 0 : [each.content, ...of(each, PAINT)]);
    const isBox = style.backgroundImage !== "none" || !/, 0\)$/.test(style.backgroundColor)
      || style.overflowX !== "visible" || style.overflowY !== "visible";
    const found = {
      number: numbered(below.number, element.localName, of(style, PAINT), around, element.ariaDisabled, element.inert),
      boxes: isBox ? [...below.boxes, element.getBoundingClientRect()] : below.boxes,
      isAlone: below.isAlone || /^(absolute|fixed)$/.test(style.position)
        || /^(svg|label|button|select|fieldset)$/.test(element.localName),
      style,
    };
    grounds.set(element, found);
    return found;
  };
  const seen = new Set();
  const root = within ? document.querySelector(within) : document.documentElement;
  return [...root.querySelectorAll("*"), root].filter((element) => {
    if (but && element.closest(but)) return false;
    const isField = /^(input|textarea|select)$/.test(element.localName);
    const text = [...element.childNodes].filter((each) => each.nodeType === 3).map((each) => each.data).join("").trim();
    if (!text && !isField) return false;
    const on = ground(element);
    if (on.isAlone || isField || element.id) return true;
    const box = element.getBoundingClientRect();
    const inside = on.boxes.map((each) => box.left >= each.left && box.right <= each.right
      && box.top >= each.top && box.bottom <= each.bottom);
    const key = numbered(on.number, of(on.style, LETTERS), inside, /[a-z0-9]{2}/i.test(text) ? "" : text);
    return !seen.has(key) && seen.add(key);
  });
};
