"use strict";
// Functions of a page: sort tables, show values by keyboard and touch, choose light or dark colours.
// The page is complete without them.

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
    // Unknown values are last in both orders.
    rows.sort((a, b) => (a.value === null) - (b.value === null) || (a.value === null ? 0 : sign * compare(a.value, b.value)));
    body.append(...rows.map((entry) => entry.row));
  }
  for (const cell of head.parentElement.cells) if (cell.hasAttribute("aria-sort")) cell.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", order);
  cut(table);
  placeTabStops();
}

// Long tables without groups show their first lines, and a button shows all; paper has all lines.
const [MOST_LINES, FIRST_LINES] = [30, 20];

function cut(table) {
  const rows = Array.from(table.tBodies).flatMap((body) => Array.from(body.rows));
  const isLine = (row) => !row.matches(".group, .unselected");
  const count = rows.filter(isLine).length;
  const button = table.parentElement.nextElementSibling;
  if (!button || !button.matches("button.lines")) return;
  const isCut = count > MOST_LINES && button.getAttribute("aria-expanded") === "false";
  let before = 0;
  for (const row of rows) {
    row.classList.toggle("rest", isCut && before >= FIRST_LINES);
    before += isLine(row);
  }
  button.hidden = count <= MOST_LINES;
  button.textContent = isCut ? `Show all ${count} lines` : `Show the first ${FIRST_LINES} lines`;
}

function makeShort(table) {
  if (table.rows.length <= MOST_LINES || table.matches(".grouped")) return;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small lines";
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", () => {
    button.setAttribute("aria-expanded", button.getAttribute("aria-expanded") === "false");
    cut(table);
    if (button.getAttribute("aria-expanded") === "false") button.scrollIntoView({ block: "center" });
  });
  table.parentElement.after(button);
  cut(table);
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

const isSelected = (element) => !element.closest(".unselected, .rest");

function neighbour(element, key) {
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[key];
  if (!step) return null;
  const row = element.closest("tr");
  if (!row) {
    const points = Array.from(element.closest("svg").querySelectorAll("[data-point]")).filter(isSelected);
    return points[points.indexOf(element) + step] || null;
  }
  if (key === "ArrowLeft" || key === "ArrowRight") {
    let next = row.cells[element.cellIndex + step];
    while (next && !isSelected(next)) next = row.cells[next.cellIndex + step];
    return next && next.matches(TIPS) ? next : null;
  }
  const rows = Array.from(element.closest("table").querySelectorAll("tbody tr"));
  for (let at = rows.indexOf(row) + step; rows[at]; at += step) {
    const cell = rows[at].cells[element.cellIndex];
    if (cell && cell.matches(TIPS) && isSelected(cell)) return cell;
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

// Each table and each figure is one stop of the tab key, at a part that is shown.
function placeTabStops() {
  for (const group of document.querySelectorAll("table, figure svg")) {
    const stop = group.querySelector("td[tabindex='0'], th[tabindex='0'], [data-point][tabindex='0']");
    if (stop && isSelected(stop)) continue;
    if (stop) stop.tabIndex = -1;
    const first = Array.from(group.querySelectorAll(group.matches("table") ? "td, th" : "[data-point]")).find(
      (element) => element.matches(TIPS) && isSelected(element),
    );
    if (first) first.tabIndex = 0;
    if (first && group.matches("svg")) group.setAttribute("role", "group"); // otherwise its parts cannot be focused
  }
}

function makeTips() {
  document.body.append(tip);
  placeTabStops();
  const over = (event) => show(event.target.closest && event.target.closest(TIPS));
  for (const name of ["pointerover", "focusin", "click"]) document.addEventListener(name, over);
  document.addEventListener("keydown", onKey);
  // The focused element keeps its tooltip: the page may have scrolled to bring it into view.
  const focused = () => (document.activeElement.matches("td, th, [data-point]") ? document.activeElement : null);
  document.addEventListener("scroll", () => tip.hidden || show(focused()), true);
}

// Light or dark colours: the setting of the system until the reader chooses.
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
  const closed = () => document.querySelectorAll("details:not([open]):not(.selection)");
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = Array.from(closed());
    for (const element of opened) element.open = true;
  });
  addEventListener("afterprint", () => opened.forEach((element) => (element.open = false)));
}
