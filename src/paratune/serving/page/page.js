"use strict";
// Asks the server for a prediction, then for its explanation. Texts enter the page as text, never as markup.

const FULL_COLOUR = 10; // an effect of so many smallest effects has the full colour, as in reports
const STRONG = 0.4; // strength from which a word has a sign
const MOST_WORDS = 10;
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

function signed(value) {
  return (value < 0 ? "−" : "+") + String(Number(Math.abs(value).toPrecision(3)));
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

function tableOf(head, rows) {
  const cells = head.map((name, at) => element("th", name, { scope: "col", class: at === 1 ? "number" : "" }));
  return element("div", element("table", [element("thead", element("tr", cells)), element("tbody", rows)]), { class: "scroll" });
}

function showPrediction(answer) {
  const { prediction, ...others } = answer.predictions[0];
  const shown = [element("h2", "Prediction"), element("p", prediction === "" ? "no answer" : rounded(prediction), { class: "answer" })];
  if (answer.warning) shown.push(element("p", answer.warning.message, { class: "notice warn" }));
  if (answer.intervals) {
    const [low, high] = answer.intervals[0];
    const { coverage, test } = health.interval;
    const checked = test ? ` On the test set, ${rounded(100 * test.share)}% of ${test.num_rows} rows were inside${test.is_kept ? "" : ": the intervals are too narrow there"}.` : "";
    shown.push(element("p", `Interval for ${rounded(100 * coverage)}% of new texts of the same kind: ${rounded(low)} to ${rounded(high)}.${checked}`));
  }
  const rows = Object.entries(others).map(([name, value]) => {
    const isShare = name.startsWith("score_") && value >= 0 && value <= 1;
    const bar = element("span", [], { class: "bar" });
    if (isShare) bar.style.setProperty("--share", value);
    const cells = [element("th", name, { scope: "row" }), element("td", rounded(value), { class: "number" })];
    return element("tr", [...cells, element("td", isShare ? bar : "", { class: "share", "aria-hidden": "true" })]);
  });
  if (rows.length) shown.push(tableOf(["column", "value", ""], rows));
  shown.push(element("p", `The model read ${answer.num_tokens} tokens.`, { class: "caption" }));
  show("prediction", ...shown);
}

function marked(word, text, effect, largest) {
  const strength = largest > 0 ? effect / largest : 0;
  if (!strength) return text;
  const kind = strength > 0 ? "raises" : "lowers";
  const made = element("span", text, { class: kind, title: `${kind} the output: ${signed(effect)}` });
  made.style.setProperty("--strength", Math.abs(strength).toFixed(2));
  if (Math.abs(strength) >= STRONG) made.append(element("sup", strength > 0 ? "+" : "−", { "aria-hidden": "true" }));
  return made;
}

function markedTexts(found, method) {
  const effects = found.words.map((word) => (word.holds[method] ? word.effects[method] : 0));
  const largest = Math.max(FULL_COLOUR * found.smallest_effect, ...effects.map(Math.abs));
  return found.texts.map((text, index) => {
    const letters = Array.from(text); // positions count characters, not units of UTF-16
    const parts = [];
    let end = 0;
    found.words.forEach((word, number) => {
      if (word.text_index !== index) return;
      parts.push(letters.slice(end, word.start).join(""), marked(word, word.text, effects[number], largest));
      end = word.end;
    });
    const rest = letters.slice(end).join("");
    if (rest.trim()) parts.push(element("span", found.num_unread_words ? ` [not read: ${rest.trim()}]` : rest, { class: found.num_unread_words ? "unread" : "" }));
    return element("p", parts, { class: "marked" });
  });
}

function showExplanation(found) {
  const [[method, details]] = Object.entries(found.methods);
  const shown = [
    element("h2", "Explanation"),
    element("p", `Explained: the ${found.target}. It is ${rounded(found.output)}, and ${rounded(found.output_hidden)} with all words hidden (${found.replacement}).`),
  ];
  if (!details.holds) {
    const verdict = details.verdict.startsWith("cannot") ? details.verdict : `are ${details.verdict}`;
    shown.push(element("p", `The effects ${verdict}. The text has no colours.`, { class: "notice warn" }));
  }
  shown.push(...markedTexts(found, method));
  if (details.holds) {
    const strongest = found.words.filter((word) => word.holds[method]).sort((a, b) => Math.abs(b.effects[method]) - Math.abs(a.effects[method])).slice(0, MOST_WORDS);
    const rows = strongest.map((word) =>
      element("tr", [element("th", word.text, { scope: "row" }), element("td", signed(word.effects[method]), { class: "number" })]),
    );
    shown.push(element("details", [element("summary", "Words with the largest effects"), tableOf(["word", "effect"], rows)]));
  }
  const gap = details.completeness_gap === null ? "" : ` The effects sum to the difference of the outputs up to ${signed(details.completeness_gap)}.`;
  shown.push(element("p", `Solid lines raise the output, dashed lines lower it. Against ${found.num_orders - 1} other orders of the words: p = ${rounded(details.p_value)}.${gap} Effects are those of the model, not of the world.`, { class: "caption" }));
  show("explanation", ...shown);
}

async function ask(event) {
  if (event) event.preventDefault();
  if (current) current.abort();
  const request = (current = new AbortController());
  show("error");
  show("explanation");
  show("prediction", element("p", "Predicting", { class: "busy" }));
  try {
    const row = readRow();
    showPrediction(await send("/predict", row, request.signal));
    const method = byId("method").value;
    if (!health.can_explain || !method) return;
    show("explanation", element("p", "Explaining", { class: "busy" }));
    showExplanation(await send(`/explain?method=${encodeURIComponent(method)}`, row, request.signal));
  } catch (error) {
    if (request.signal.aborted) return;
    if (byId("prediction").querySelector(".busy")) show("prediction");
    show("explanation");
    show("error", error instanceof TypeError ? "The server does not answer." : error.message);
  }
}

async function start() {
  health = await (await fetch("/health", { cache: "no-store" })).json();
  byId("about").textContent = `A model for ${health.task.replaceAll("_", " ")}.`;
  health.columns.forEach((column, number) => {
    const id = `column-${number}`;
    const hint = health.task === "token_classification" ? " (words separated by spaces)" : "";
    const field = element("textarea", [], { id, name: column, maxlength: health.max_chars, required: "" });
    byId("fields").append(element("div", [element("label", column + hint, { for: id }), field], { class: "field" }));
  });
  for (const [name, title] of Object.entries(health.methods)) byId("method").append(element("option", title, { value: name }));
  byId("method").append(element("option", "nothing", { value: "" }));
  byId("method-field").hidden = !health.can_explain;
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
