
// Selection: hides the lines of tables and the parts of figures that belong to other configurations or runs.
// An element with data-of belongs to the entries with these numbers; it is shown if one of them is selected.

const MOST_NAMES = 40;

function makeSelection() {
  const box = document.querySelector("#selection");
  if (!box) return;
  const words = box.querySelector("input[type=search]");
  const checks = Array.from(box.querySelectorAll("input[type=checkbox]"));
  const names = checks.map((check) => check.parentElement.textContent.trim());
  const owned = Array.from(document.querySelectorAll("[data-of]"), (element) => ({ element, numbers: element.dataset.of.split(" ") }));
  const groups = Array.from(document.querySelectorAll("table, figure")).filter((group) => group.querySelector("[data-of]"));

  function update() {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const listed = names.map((name) => wanted.every((word) => name.toLowerCase().includes(word)));
    const selected = checks.map((check, at) => check.checked && listed[at]);
    checks.forEach((check, at) => (check.parentElement.hidden = !listed[at]));
    for (const { element, numbers } of owned) element.classList.toggle("unselected", !numbers.some((number) => selected[number]));
    for (const group of groups) {
      const isNone = !Array.from(group.querySelectorAll("[data-of]")).some(isSelected);
      const place = group.matches("figure") ? group : group.parentElement;
      place.classList.toggle("none", isNone && !group.matches(".unselected"));
    }
    document.querySelectorAll(".scroll:has(+ button.lines) > table").forEach(cut);
    document.querySelectorAll("svg[data-row-height]").forEach(moveRows);
    placeTabStops();
    showState(box, names.filter((_, at) => selected[at]), names.length);
  }

  box.addEventListener("input", update);
  for (const button of box.querySelectorAll("button[data-select]")) {
    button.addEventListener("click", () => {
      // Only those that the words leave in the list.
      for (const check of checks) if (!check.parentElement.hidden) check.checked = button.dataset.select === "all";
      update();
    });
  }
  box.hidden = false;
  update(); // a browser may have kept the state of an earlier visit
}

function showState(box, shown, count) {
  const isAll = shown.length === count;
  const note = document.querySelector("#selection-note");
  box.querySelector(".state").textContent = isAll ? `all ${count} are shown` : `${shown.length} of ${count} are shown`;
  box.classList.toggle("narrowed", !isAll);
  note.hidden = isAll;
  const more = shown.length > MOST_NAMES ? `; and ${shown.length - MOST_NAMES} more` : "";
  const listed = shown.length ? `: ${shown.slice(0, MOST_NAMES).join("; ")}${more}` : "";
  note.textContent = isAll ? "" : `${shown.length} of ${count} ${box.dataset.kind} are selected${listed}. ${note.dataset.note}`;
}

// Closes the gaps of hidden rows: rows move towards the axis at the bottom, and the figure ends above the first one.
function moveRows(svg) {
  const height = Number(svg.dataset.rowHeight);
  const rows = new Map();
  for (const part of svg.querySelectorAll("[data-row]")) {
    const row = Number(part.dataset.row);
    rows.set(row, [...(rows.get(row) || []), part]);
  }
  let shift = 0;
  for (const row of [...rows.keys()].sort((a, b) => b - a)) {
    const parts = rows.get(row);
    if (parts.every((part) => part.matches(".unselected"))) shift += height;
    else for (const part of parts) part.style.transform = shift ? `translateY(${shift}px)` : "";
  }
  if (svg.dataset.box === undefined) svg.dataset.box = svg.getAttribute("viewBox");
  const [left, top, width, whole] = svg.dataset.box.split(" ").map(Number);
  svg.setAttribute("viewBox", [left, top + shift, width, whole - shift].join(" "));
  svg.style.clipPath = shift ? "inset(0 -100vw -100vh)" : "";
}
