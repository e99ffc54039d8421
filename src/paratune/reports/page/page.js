"use strict";
// Functions of a page: sort tables, show values by keyboard and touch, choose light or dark colours, copy listings,
// print all. The page is complete without them.

function makeButton(text, kind, onClick) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: kind });
  button.append(...text);
  button.addEventListener("click", onClick);
  return button;
}

function valueOf(cell, isText) {
  if (!isText && cell.dataset.value !== undefined) return Number(cell.dataset.value);
  const text = cell.textContent.trim();
  const number = isText ? NaN : parseFloat(text.replace(/,/g, "").replace("−", "-"));
  return text === "" || text === "n/a" ? null : Number.isNaN(number) ? text : number;
}

const { compare } = new Intl.Collator(undefined, { numeric: true });

function sortBy(table, head) {
  const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  const sign = order === "ascending" ? 1 : -1;
  const isText = head.hasAttribute("data-text");
  const [body] = table.tBodies;
  const rows = Array.from(body.rows, (row) => ({ row, value: valueOf(row.cells[head.cellIndex], isText) }));
  // Unknown values are last in both orders.
  rows.sort(({ value: a }, { value: b }) => (a === null) - (b === null) || sign * (a - b || compare(a, b)));
  body.append(...rows.map((entry) => entry.row));
  for (const cell of head.parentElement.cells) cell.setAttribute("aria-sort", cell === head ? order : "none");
}

for (const table of document.querySelectorAll("table[data-sortable]")) {
  for (const head of table.tHead.rows[0].cells) {
    head.append(makeButton(head.childNodes, "sort", () => sortBy(table, head)));
    head.setAttribute("aria-sort", "none");
  }
}

// Tooltip over the element that a reader points at, taps, or reaches by arrow keys. Each table or figure is one tab stop.
const TIPS = "[title], [data-tip], [data-point]";
const KEYS = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 };
const tip = Object.assign(document.createElement("div"), { id: "tip", role: "tooltip", hidden: true });
document.body.append(tip);

function tipOf(element) {
  if (element.dataset.tip === undefined) {
    const own = element.querySelector(":scope > title"); // of a part of a figure
    element.dataset.tip = own ? own.textContent : element.title;
    // The tooltip of the browser would cover ours.
    if (own) {
      own.remove();
      element.setAttribute("role", "img");
      element.setAttribute("aria-label", element.dataset.tip);
    } else element.removeAttribute("title");
  }
  return element.dataset.tip;
}

function show(element) {
  tip.textContent = element ? tipOf(element) : "";
  tip.hidden = !tip.textContent;
  if (tip.hidden) return;
  const box = element.getBoundingClientRect();
  const left = Math.min(box.left + box.width / 2 - tip.offsetWidth / 2, innerWidth - tip.offsetWidth - 8);
  const above = box.top - tip.offsetHeight - 6;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${above > 4 ? above : box.bottom + 6}px`;
}

function neighbour(element, key) {
  const row = element.closest("tr");
  const all = !row
    ? [...element.closest("svg").querySelectorAll("[data-point]")]
    : key === "ArrowLeft" || key === "ArrowRight"
      ? [...row.cells]
      : Array.from(row.closest("table").querySelectorAll("tbody tr"), (other) => other.cells[element.cellIndex]);
  const places = all.filter((other) => other && other.matches(TIPS));
  return places[places.indexOf(element) + KEYS[key]];
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") show(null);
  const next = event.key in KEYS && event.target.matches("td, th, [data-point]") && neighbour(event.target, event.key);
  if (!next) return;
  event.preventDefault();
  event.target.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});
for (const group of document.querySelectorAll("table, figure svg")) {
  const first = group.querySelector(":is(td, th)[title], [data-point]");
  if (first) first.tabIndex = 0;
  if (first && group.matches("svg")) group.setAttribute("role", "group"); // otherwise its parts cannot be focused
}
for (const name of ["pointerover", "focusin", "click"]) {
  document.addEventListener(name, (event) => show(event.target.closest && event.target.closest(TIPS)));
}
// The focused element keeps its tooltip: the page may have scrolled to bring it into view.
const focused = () => (document.activeElement.matches("td, th, [data-point]") ? document.activeElement : null);
document.addEventListener("scroll", () => tip.hidden || show(focused()), true);

for (const text of navigator.clipboard ? document.querySelectorAll("pre") : []) {
  const copy = makeButton(["Copy"], "small", () => navigator.clipboard.writeText(text.textContent).then(
    () => (copy.textContent = "Copied"),
    () => (copy.textContent = "Not allowed: select the text"),
  ));
  text.before(copy);
}

// The colours are those of the system until the reader chooses.
document.querySelector("main").prepend(makeButton(["Light or dark"], "theme", () => {
  const { style } = document.documentElement;
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  style.colorScheme = (style.colorScheme || (isDark ? "dark" : "light")) === "dark" ? "light" : "dark";
}));

// Paper has everything that is closed.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const element of opened) element.open = true;
});
addEventListener("afterprint", () => opened.forEach((element) => (element.open = false)));
