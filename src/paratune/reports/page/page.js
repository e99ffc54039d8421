"use strict";
// Functions of a page: sort tables, copy listings, print all. The page is complete without them.

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

for (const text of navigator.clipboard ? document.querySelectorAll("pre") : []) {
  const copy = makeButton(["Copy"], "small", () => navigator.clipboard.writeText(text.textContent).then(
    () => (copy.textContent = "Copied"),
    () => (copy.textContent = "Not allowed: select the text"),
  ));
  text.before(copy);
}

// Paper has everything that is closed.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const element of opened) element.open = true;
});
addEventListener("afterprint", () => opened.forEach((element) => (element.open = false)));
