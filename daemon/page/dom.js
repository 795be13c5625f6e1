// Elements. Whatever is put into one as text stays text: nothing that an agent said is ever read as HTML.

/** An element with attributes and children; a string child is text, null is nothing. `on` holds its listeners. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  const { on = {}, ...plain } = attributes;
  for (const [name, value] of Object.entries(plain)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  for (const [event, listener] of Object.entries(on)) made.addEventListener(event, listener);
  made.append(...children.flat().filter((child) => child != null));
  return made;
}

/** The element of that id, which is on the page. */
export function byId(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no #${id}`);
  return found;
}

const madeOf = new WeakMap();

/**
 * Give a node other children, if what they are made of has changed since the last time.
 * Whoever had the focus, and what was open, is found again by `data-focus`.
 */
export function renew(node, facts, make) {
  const signature = JSON.stringify(facts);
  if (madeOf.get(node) === signature) return;
  madeOf.set(node, signature);
  const focused = node.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
  const open = new Set([...node.querySelectorAll("details[open][data-focus]")].map((each) => each.dataset.focus));
  node.replaceChildren(...[make()].flat());
  for (const each of node.querySelectorAll("details[data-focus]")) each.open ||= open.has(each.dataset.focus);
  if (focused !== undefined) node.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
}

/** A table: its caption, its columns (`[title, class]`), and rows of cells (text or nodes). */
export function table(caption, columns, rows, { hidden = false } = {}) {
  const head = columns.map(([title, kind]) => el("th", { scope: "col", class: kind }, title));
  return el("table", {},
    el("caption", { class: hidden ? "sr" : null }, caption),
    el("thead", {}, el("tr", {}, ...head)),
    el("tbody", {}, ...rows.map((cells) => row(columns, cells))));
}

/** One of its rows; the first cell is the row's heading. Each says its column, for narrow screens. */
export function row(columns, cells, attributes = {}) {
  return el("tr", attributes, ...cells.map((cell, at) => {
    const [title, kind] = columns[at];
    const own = { class: kind, "data-column": title };
    return at === 0 ? el("th", { ...own, scope: "row" }, cell) : el("td", own, cell);
  }));
}

/** A term and what it is, for a `dl`. */
export function fact(term, ...values) {
  return el("div", {}, el("dt", {}, term), el("dd", {}, ...values));
}

/** A bar that is filled by a share between 0 and 1; what it says is said in words beside it. */
export function bar(share, kind = "") {
  const fill = el("span", { class: "fill" });
  fill.style.setProperty("inline-size", `${100 * Math.min(1, Math.max(0, share))}%`);
  return el("span", { class: `bar ${kind}`, "aria-hidden": "true" }, fill);
}

/** Why there is nothing here yet, and what to do about it. */
export function nothing(...said) {
  return el("p", { class: "nothing" }, ...said);
}

/** A labelled choice; `options` are `[value, text]`. */
export function choice(label, id, options, changed) {
  const select = el("select", { id, on: { change: () => changed(select.value) } },
    ...options.map(([value, text]) => el("option", { value }, text)));
  return { field: el("span", { class: "field" }, el("label", { for: id }, label), select), select };
}
