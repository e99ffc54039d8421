"use strict";
// Asks the server for a prediction. Texts enter the page as text, never as markup.

let health = null;
let current = null;

function byId(id) {
  return document.getElementById(id);
}

function element(name, content = [], attributes = {}) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...[content].flat());
  return made;
}

function rounded(value) {
  if (typeof value === "number") return String(Number(value.toPrecision(4))).replace("-", "−");
  return value === null ? "n/a" : String(value);
}

function show(id, ...content) {
  byId(id).replaceChildren(...content);
  byId(id).hidden = content.length === 0;
}

async function send(path, row, signal) {
  const headers = { "Content-Type": "application/json" };
  if (health.needs_token) headers.Authorization = "Bearer " + byId("token").value.trim();
  const body = JSON.stringify({ rows: [row] });
  const response = await fetch(path, { method: "POST", headers, body, signal, credentials: "omit", cache: "no-store" });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.errors.map((fault) => `${fault.message} (${fault.code})`).join("\n"));
  return answer;
}

function readRow() {
  const row = {};
  for (const field of byId("fields").querySelectorAll("textarea")) {
    const text = field.value;
    row[field.name] = health.task === "token_classification" ? text.split(/\s+/).filter(Boolean) : text;
  }
  return row;
}

function percent(share) {
  const whole = Math.round(100 * share);
  return whole === 0 ? "< 1%" : whole === 100 ? "> 99%" : `${whole}%`;
}

function showPrediction(answer, row) {
  const { prediction, ...others } = answer.predictions[0];
  const shown = [];
  const own = `score_${prediction}`;
  const isShare = (name) => name.startsWith("score_") && others[name] >= 0 && others[name] <= 1;
  const share = isShare(own) ? ` ${percent(others[own])}` : "";
  if (prediction !== undefined) shown.push(element("p", prediction === "" ? "no answer" : rounded(prediction) + share, { class: "answer" }));
  if (answer.warning) shown.push(element("p", answer.warning.message, { class: "notice warn" }));
  if (answer.intervals) {
    const [low, high] = answer.intervals[0];
    const { coverage, test } = health.interval;
    const checked = test ? ` On the test set, ${rounded(100 * test.share)}% of ${test.num_rows} rows were inside${test.is_kept ? "" : ": the intervals are too narrow there"}.` : "";
    shown.push(element("p", `Interval for ${rounded(100 * coverage)}% of new texts of the same kind: ${rounded(low)} to ${rounded(high)}.${checked}`));
  }
  const rows = Object.entries(others).map(([name, value]) => {
    const bar = element("span", [], { class: "bar" });
    if (isShare(name)) bar.style.setProperty("--share", value);
    const label = isShare(name) ? name.slice("score_".length) : name;
    const cells = [element("th", label, { scope: "row" }), element("td", isShare(name) ? percent(value) : rounded(value), { class: "number" })];
    return element("tr", [...cells, element("td", isShare(name) ? bar : "", { class: "share", "aria-hidden": "true" })]);
  });
  if (rows.length) shown.push(element("div", element("table", element("tbody", rows)), { class: "scroll" }));
  if (health.explains) {
    const button = element("button", "Which words?", { type: "button", class: "why", title: "Hides each word in turn" });
    button.addEventListener("click", () => explain(button, row));
    shown.push(button);
  }
  show("prediction", ...shown);
}

async function explain(button, row) {
  button.disabled = true;
  button.classList.add("busy");
  try {
    const { explained, words } = await send("/explain", row);
    const text = element("p", [], { class: "marked" });
    for (const { before, text: word, effect, strength } of words) {
      const mark = element("span", word, effect === null ? {} : { class: effect > 0 ? "raises" : "lowers", title: rounded(effect) });
      mark.style.setProperty("--strength", Math.min(1, Math.abs(strength)));
      text.append(before, mark);
    }
    const note = `How the ${explained} changes when a word is hidden: words with a solid line raise it, with a dashed line lower it.`;
    button.replaceWith(text, element("p", note, { class: "caption" }));
  } catch (error) {
    button.disabled = false;
    button.classList.remove("busy");
    show("error", error instanceof TypeError ? "The server does not answer." : error.message);
  }
}

async function ask(event) {
  if (event) event.preventDefault();
  if (current) current.abort();
  const request = (current = new AbortController());
  show("error");
  show("prediction", element("p", "Predicting", { class: "busy" }));
  try {
    const row = readRow();
    showPrediction(await send("/predict", row, request.signal), row);
  } catch (error) {
    if (request.signal.aborted) return;
    show("prediction");
    show("error", error instanceof TypeError ? "The server does not answer." : error.message);
  }
}

async function start() {
  health = await (await fetch("/health", { cache: "no-store" })).json();
  const score = health.score ? `, ${health.score.metric.replaceAll("_", " ")} ${rounded(health.score.value)}` : "";
  byId("about").textContent = `${health.task.replaceAll("_", " ")}${score}`;
  byId("title").textContent = document.title = health.model || "Ask the model";
  health.columns.forEach((column, number) => {
    const id = `column-${number}`;
    const hint = health.task === "token_classification" ? " (words separated by spaces)" : "";
    const field = element("textarea", [], { id, name: column, maxlength: health.max_chars, required: "" });
    field.value = [health.example?.[column] ?? ""].flat().join(" ");
    field.addEventListener("focus", () => field.select(), { once: true });
    byId("fields").append(element("div", [element("label", column + hint, { for: id }), field], { class: "field" }));
  });
  byId("token-field").hidden = !health.needs_token;
  byId("form").hidden = false;
  byId("form").addEventListener("submit", ask);
  byId("form").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      byId("form").requestSubmit();
    }
  });
  byId("column-0").focus();
}

start().catch(() => show("error", "The server does not answer."));
