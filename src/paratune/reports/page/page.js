"use strict";
// Functions of a page: sort tables, show values by keyboard and touch, choose light or dark colours, print all.
// The page is complete without them.

const SORTS = { none: "ascending", ascending: "descending", descending: "ascending" };
const NUMBER = /^[−+-]?[\d,]*\.?\d+(e[−+-]?\d+)?/i;

function valueOf(cell, isText) {
  if (!isText && cell.dataset.value !== undefined) return Number(cell.dataset.value);
  const text = cell.textContent.trim();
  if (text === "" || text === "n/a") return null;
  const found = isText ? null : NUMBER.exec(text);
  return found ? Number(found[0].replace(/,/g, "").replace(/−/g, "-")) : text;
}

function compare(first, second) {
  if (typeof first === "number" && typeof second === "number") return first - second;
  return String(first).localeCompare(String(second), undefined, { numeric: true });
}

function sortBy(table, head) {
  const order = SORTS[head.getAttribute("aria-sort")];
  const sign = order === "ascending" ? 1 : -1;
  const isText = head.hasAttribute("data-text");
  const [body] = table.tBodies;
  const rows = Array.from(body.rows, (row) => ({ row, value: valueOf(row.cells[head.cellIndex], isText) }));
  // Unknown values are last in both orders.
  rows.sort((a, b) => (a.value === null) - (b.value === null) || (a.value === null ? 0 : sign * compare(a.value, b.value)));
  body.append(...rows.map((entry) => entry.row));
  for (const cell of head.parentElement.cells) cell.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", order);
}

function makeSortable(table) {
  for (const head of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => sortBy(table, head));
  }
}

// Tooltip over the element that a reader points at, taps, or reaches by arrow keys. Each table or figure is one tab stop.
const tip = document.createElement("div");
tip.id = "tip";
tip.setAttribute("role", "tooltip");
tip.hidden = true;
const TIPS = "[title], [data-tip], [data-point]";

function tipOf(element) {
  if (element.dataset.tip === undefined) {
    const own = element.hasAttribute("data-point") ? element.querySelector(":scope > title") : null;
    element.dataset.tip = own ? own.textContent : element.title;
    if (own) {
      own.remove(); // the tooltip of the browser would cover ours
      element.setAttribute("role", "img");
      element.setAttribute("aria-label", element.dataset.tip);
    } else element.removeAttribute("title");
  }
  return element.dataset.tip;
}

function show(element) {
  const text = element && tipOf(element);
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const box = element.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left + box.width / 2 - tip.offsetWidth / 2), innerWidth - tip.offsetWidth - 8);
  const above = box.top - tip.offsetHeight - 6;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${above > 4 ? above : box.bottom + 6}px`;
}

function neighbour(element, key) {
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[key];
  const row = element.closest("tr");
  if (!step) return null;
  const isAlong = !row || key === "ArrowLeft" || key === "ArrowRight";
  const all = !row
    ? Array.from(element.closest("svg").querySelectorAll("[data-point]"))
    : isAlong
      ? Array.from(row.cells)
      : Array.from(element.closest("table").querySelectorAll("tbody tr"), (other) => other.cells[element.cellIndex]);
  const places = all.filter((other) => other && other.matches(TIPS));
  return places[places.indexOf(element) + step] || null;
}

function onKey(event) {
  if (event.key === "Escape") return show(null);
  const next = event.target.matches("td, th, [data-point]") ? neighbour(event.target, event.key) : null;
  if (!next) return;
  event.preventDefault();
  event.target.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function makeTips() {
  document.body.append(tip);
  for (const group of document.querySelectorAll("table, figure svg")) {
    const first = group.querySelector(":is(td, th)[title], [data-point]");
    if (first) first.tabIndex = 0;
    if (first && group.matches("svg")) group.setAttribute("role", "group"); // otherwise its parts cannot be focused
  }
  const over = (event) => show(event.target.closest && event.target.closest(TIPS));
  for (const name of ["pointerover", "focusin", "click"]) document.addEventListener(name, over);
  document.addEventListener("keydown", onKey);
  // The focused element keeps its tooltip: the page may have scrolled to bring it into view.
  const focused = () => (document.activeElement.matches("td, th, [data-point]") ? document.activeElement : null);
  document.addEventListener("scroll", () => tip.hidden || show(focused()), true);
}

// Light or dark colours: the setting of the system until the reader chooses.
function makeTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const style = document.documentElement.style;
  const button = document.createElement("button");
  const isDark = () => (style.colorScheme || (system.matches ? "dark" : "light")) === "dark";
  const label = () => (button.textContent = isDark() ? "Light colours" : "Dark colours");
  button.type = "button";
  button.className = "theme";
  button.addEventListener("click", () => {
    style.colorScheme = isDark() ? "light" : "dark";
    label();
  });
  system.addEventListener("change", label);
  label();
  document.querySelector("main").prepend(button);
}

// Listings have a button that copies them; paper has everything that is closed.
function makeCopy(text) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small";
  button.textContent = "Copy";
  button.addEventListener("click", () => navigator.clipboard.writeText(text.textContent).then(
    () => (button.textContent = "Copied"),
    () => (button.textContent = "Not allowed: select the text"),
  ));
  text.before(button);
}

function openForPrint() {
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = Array.from(document.querySelectorAll("details:not([open])"));
    for (const element of opened) element.open = true;
  });
  addEventListener("afterprint", () => opened.forEach((element) => (element.open = false)));
}

document.querySelectorAll("table[data-sortable]").forEach(makeSortable);
if (navigator.clipboard) document.querySelectorAll("pre").forEach(makeCopy);
makeTips();
makeTheme();
openForPrint();
