// Elements of pages. Text of others gets into a page as text alone: nothing here, or in any module, reads markup.

/** An element: attributes (`on` holds listeners, `data` the dataset), then children: elements, text, lists; null is none. */
export function h(name, attributes = {}, ...children) {
  const made = name === "svg" || name.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", name.replace("svg:", ""))
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    else if (key === "data") Object.assign(made.dataset, value);
    else if (key === "value") made.value = value;
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  add(made, children);
  return made;
}

function add(parent, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(parent, child);
    else parent.append(child instanceof Node ? child : String(child));
  }
}

// While a pointer is pressed, what it is pressed on stays where it is: the click would be lost with it.
let pressed = null;
const later = new Map();
addEventListener("pointerdown", (event) => { if (event.button === 0) pressed = event.target; }, true);
addEventListener("click", () => { pressed = null; }, true);
for (const end of ["pointerup", "pointercancel", "contextmenu"]) addEventListener(end, () => setTimeout(release), true);

function release() {
  pressed = null;
  for (const [parent, children] of later) fill(parent, ...children);
}

const NEXT = [".scrolls", ".empty p", "input, select, textarea", "button"];

/** What tells an element that can have the focus from others. */
export const called = (one) => one.getAttribute("aria-label") || one.dataset.key || one.name || one.textContent;

const foldsOf = (parent) => [...parent.querySelectorAll("details")].map((one) => [called(one.firstElementChild), one]);
const scrollsOf = (parent) => [...parent.querySelectorAll(".scrolls")];

/** Have an element hold these children, in the place of those that it had; not before a press on one of those is over.
 * What is unfolded, or scrolled, stays so. */
export function fill(parent, ...children) {
  if (pressed && parent.contains(pressed)) {
    later.set(parent, children);
    return parent;
  }
  later.delete(parent);
  const had = document.activeElement !== parent && parent.contains(document.activeElement) ? document.activeElement : null;
  const folds = new Map(foldsOf(parent).map(([key, one]) => [key, one.open])), scrolled = new Map(scrollsOf(parent).map((one) => [called(one), one.scrollLeft]));
  parent.replaceChildren();
  add(parent, children);
  for (const [key, one] of foldsOf(parent)) one.open = folds.get(key) ?? one.open;
  for (const one of scrollsOf(parent)) one.scrollLeft = scrolled.get(called(one)) ?? 0;
  // What is drawn anew keeps the focus where it was; where that is gone, it is at what came in its place.
  if (had) ([...parent.querySelectorAll(had.localName)].find((one) => called(one) === called(had)) ?? NEXT.map((each) => parent.querySelector(each)).find(Boolean))?.focus({ preventScroll: true });
  return parent;
}

let count = 0;

/** A field with its label; `help` is behind a question mark. */
export function field(label, input, help = "") {
  input.id ||= `field-${++count}`;
  return h("div", { class: "field" }, h("label", { for: input.id }, label), help && hint(label, help), input);
}

/** A question mark that explains a word, as long as one points at either; Escape puts the words away. */
export function hint(word, text) {
  const id = `hint-${++count}`;
  const words = h("span", { class: "hint-words", id, role: "tooltip" }, text);
  const made = h("span", { class: "hint" }, h("button", { type: "button", class: "ask", "aria-label": `What is ${word}?`, "aria-describedby": id }, "?"), words);
  for (const event of ["pointerenter", "focusin"]) made.addEventListener(event, () => delete made.dataset.away);
  return made;
}

/** A button. */
export function button(words, press, attributes = {}) {
  return h("button", { type: "button", ...attributes, on: { click: press } }, words);
}

/** A choice among `options`, which are values, or pairs of a value and words. */
export function choice(options, chosen, change, attributes = {}) {
  const items = options.map((one) => (Array.isArray(one) ? one : [one, one]));
  const made = h("select", attributes, items.map(([value, words]) => h("option", { value, selected: value === chosen }, words)));
  if (change) made.addEventListener("change", () => change(made.value));
  return made;
}

/** A state as a word with a mark before it, which says the same without colour. */
export function chip(state, kind = state) {
  return h("span", { class: "chip", data: { kind } }, state);
}

/** A table: `columns` are names, or elements; `rows` are lists of cells. */
export function table(caption, columns, rows, attributes = {}) {
  return h("div", { class: "scrolls", tabindex: 0, role: "region", "aria-label": caption },
    h("table", attributes, h("caption", { class: attributes.shown ? "" : "hidden" }, caption),
      h("thead", {}, h("tr", {}, columns.map((one) => h("th", { scope: "col" }, one)))),
      h("tbody", {}, rows.map((cells) => (cells instanceof Node ? cells : h("tr", {}, cells.map((cell) => h("td", {}, cell))))))));
}

/** A table that shows so many of its `items` at a time, each as `row` makes it: from `at.from` on, which is kept where it is drawn anew. */
export function paged(at, size, caption, columns, items, row, attributes = {}) {
  const last = Math.floor(Math.max(0, items.length - 1) / size) * size;
  const list = h("div", {}), shown = h("span", { class: "dim", role: "status" });
  const turn = (by) => {
    at.from = Math.max(0, Math.min((at.from ?? 0) + by, last));
    fill(list, table(caption, columns, items.slice(at.from, at.from + size).map(row), attributes));
    shown.textContent = `${at.from + 1} to ${Math.min(at.from + size, items.length)} of ${items.length}`;
    for (const [one, end] of [[before, at.from === 0], [after, at.from === last]]) one.setAttribute("aria-disabled", String(end));
  };
  const before = button("‹", () => turn(-size), { "aria-label": `${caption}: page before` }), after = button("›", () => turn(size), { "aria-label": `${caption}: next page` });
  turn(0);
  return items.length > size ? h("div", {}, list, h("div", { class: "buttons" }, before, shown, after)) : list;
}

/** A name in a table, which is not broken at its hyphens where it fits. */
export const named = (name) => h("span", { class: "named" }, name);

/** What is said where there is nothing, with what would change that. */
export function empty(words, ...more) {
  return h("div", { class: "empty" }, h("p", { tabindex: -1 }, words), more);
}

/** Have the browser save a file with this `text`. */
export function saved(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}
