"use strict";
// What a page of paratune can do beside being read: sort tables, show values by keyboard and touch, choose light or dark.
// Without it the page says the same.

const SORTS = { none: "ascending", ascending: "descending", descending: "ascending" };
const NUMBER = /^[−+-]?[\d,]*\.?\d+(e[−+-]?\d+)?/i;

function valueOf(cell) {
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  const text = cell.textContent.trim();
  if (text === "" || text === "n/a") return null;
  const found = NUMBER.exec(text);
  return found ? Number(found[0].replace(/,/g, "").replace(/−/g, "-")) : text;
}

function compare(first, second) {
  if (typeof first === "number" && typeof second === "number") return first - second;
  return String(first).localeCompare(String(second), undefined, { numeric: true });
}

function sortBy(table, head) {
  const order = SORTS[head.getAttribute("aria-sort")];
  const at = head.cellIndex;
  const sign = order === "ascending" ? 1 : -1;
  const isText = head.hasAttribute("data-text");
  for (const body of table.tBodies) {
    const rows = Array.from(body.rows, (row) => {
      const cell = row.cells[at];
      const text = cell.textContent.trim();
      return { row, value: isText ? (text === "" || text === "n/a" ? null : text) : valueOf(cell) };
    });
    // What is unknown stands last in both orders.
    rows.sort((a, b) => (a.value === null) - (b.value === null) || (a.value === null ? 0 : sign * compare(a.value, b.value)));
    body.append(...rows.map((each) => each.row));
  }
  for (const each of head.parentElement.cells) if (each.hasAttribute("aria-sort")) each.setAttribute("aria-sort", "none");
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

// Values: a small box over what is pointed at, tapped, or reached by arrow keys. One stop of the tab key a table or figure.
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
      own.remove(); // the browser's own box would stand over ours
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
  if (!step) return null;
  const row = element.closest("tr");
  if (!row) {
    const points = Array.from(element.closest("svg").querySelectorAll("[data-point]"));
    return points[points.indexOf(element) + step] || null;
  }
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const next = row.cells[element.cellIndex + step];
    return next && next.matches(TIPS) ? next : null;
  }
  const rows = Array.from(element.closest("table").querySelectorAll("tbody tr"));
  for (let at = rows.indexOf(row) + step; rows[at]; at += step) {
    const cell = rows[at].cells[element.cellIndex];
    if (cell && cell.matches(TIPS)) return cell;
  }
  return null;
}

function onKey(event) {
  if (event.key === "Escape") return show(null);
  const element = event.target.closest("td, th, [data-point]");
  if (!element || !element.matches(TIPS) || event.target !== element) return;
  const next = neighbour(element, event.key);
  if (!next) return;
  event.preventDefault();
  element.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function makeTips() {
  document.body.append(tip);
  for (const group of document.querySelectorAll("table, figure svg")) {
    const first = group.querySelector(group.matches("table") ? "td[title], th[title]" : "[data-point]");
    if (first) first.tabIndex = 0;
    if (first && group.matches("svg")) group.setAttribute("role", "group"); // else its parts could not be reached
  }
  const over = (event) => show(event.target.closest && event.target.closest(TIPS));
  for (const name of ["pointerover", "focusin", "click"]) document.addEventListener(name, over);
  document.addEventListener("keydown", onKey);
  // What has the focus keeps its value: the page may have scrolled to bring it into view.
  const focused = () => (document.activeElement.matches("td, th, [data-point]") ? document.activeElement : null);
  document.addEventListener("scroll", () => tip.hidden || show(focused()), true);
}

// Light or dark: as the system has it until the reader says otherwise.
function makeTheme() {
  const rules = Array.from(document.styleSheets[0].cssRules);
  const dark = rules.find((rule) => rule.media && rule.media.mediaText.includes("prefers-color-scheme"));
  const system = matchMedia("(prefers-color-scheme: dark)");
  const button = document.createElement("button");
  let chosen = null;
  const isDark = () => (chosen === null ? system.matches : chosen);
  const label = () => (button.textContent = isDark() ? "Light colours" : "Dark colours");
  button.type = "button";
  button.className = "theme";
  button.addEventListener("click", () => {
    chosen = !isDark();
    dark.media.mediaText = chosen ? "screen" : "not all";
    document.documentElement.style.colorScheme = chosen ? "dark" : "light";
    label();
  });
  system.addEventListener("change", label);
  label();
  document.querySelector("main").prepend(button);
}

function openForPrint() {
  const closed = () => document.querySelectorAll("details:not([open])");
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = Array.from(closed());
    for (const each of opened) each.open = true;
  });
  addEventListener("afterprint", () => opened.forEach((each) => (each.open = false)));
}

document.querySelectorAll("table[data-sortable]").forEach(makeSortable);
makeTips();
makeTheme();
openForPrint();
