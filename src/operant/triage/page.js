"use strict";
const $ = (id) => document.getElementById(id);
const root = document.documentElement;
const VERDICTS = { valid: "v", invalid: "x", unsure: "u" };
const WINDOW = 30; // rows per request
const BEFORE = 8; // rows in the strip before the current one
const STRIP = 28;
let about, state;
let list = { key: "", total: 0, done: 0 };
let at = 0; // place in the list
let rows = new Map(); // by place
let who = "";
let showsDifference = true;
let pending = 0; // verdicts not yet acknowledged
let queue = Promise.resolve(); // verdicts are sent in the order they were given
const times = []; // seconds between verdicts

// Requests to the server; errors are shown.

async function ask(path, body) {
  const options = body && { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer. Start `operant triage` again, and open the address that it prints.");
  }
  const text = await answer.text();
  if (answer.ok) return JSON.parse(text);
  const error = new Error(text.startsWith("{") ? JSON.parse(text).error : text);
  error.gone = answer.status === 404;
  throw error;
}
const query = (values) => new URLSearchParams(values).toString();
const blind = () => $("blind").checked;
const labelling = () => about.mode === "labels";

function toast(text) {
  $("toast").textContent = text;
  $("toast").hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => ($("toast").hidden = true), 4000);
}
const trying = (work) => work().catch((error) => toast(error.message));

// Building blocks: text is always set as text, so markup in names is harmless.

function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  const { data, ...rest } = options;
  Object.assign(element, rest);
  Object.assign(element.dataset, data ?? {});
  element.append(...children);
  return element;
}
const options = (select, pairs) => select.replaceChildren(...pairs.map(([value, text]) => make("option", { value, textContent: text })));
const percent = (share) => `${Number((100 * share).toPrecision(3))}\u00a0%`;
const duration = (seconds) =>
  seconds < 90 ? `${Math.max(1, Math.round(seconds))} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
const picture = (row, what, factor) =>
  `image/${row}/${what}.png?${query({ v: about.version, ...(what === "difference" ? { factor } : {}) })}`;

// The list: rows are fetched in windows and cached.

function wanted() {
  const fields = { by: who, blind: blind(), show: $("show").value };
  if (labelling()) return fields;
  for (const name of ["order", "label", "prediction", "method"]) fields[name] = $(name).value;
  return { ...fields, tag: $("tag-filter").value };
}

async function arrange({ keep = false } = {}) {
  const request = (arrange.request = (arrange.request ?? 0) + 1);
  const answer = await ask("api/list", wanted());
  if (request !== arrange.request) return; // a newer request replaced this one
  list = answer;
  rows = new Map();
  at = keep && at < list.total ? at : list.first;
  await go(at);
  await refresh();
}

async function load(place) {
  const kept = rows;
  if (kept.has(place) || place < 0 || place >= list.total) return;
  const start = Math.max(0, place - BEFORE);
  const answer = await ask(`api/rows?${query({ key: list.key, start, count: WINDOW, by: who, blind: blind() ? 1 : "" })}`);
  answer.rows.forEach((row, i) => kept.set(answer.start + i, row));
}

async function go(place) {
  const { key, total } = list;
  const there = (at = Math.max(0, Math.min(place, total - 1)));
  try {
    await load(there);
    await load(Math.min(there + STRIP - BEFORE, total - 1));
  } catch (error) {
    if (!error.gone) throw error;
    return arrange({ keep: true }); // the server was restarted and has no lists
  }
  if (there !== at || key !== list.key) return; // the user has moved on
  draw();
  [1, 2, 3].forEach((by) => prefetch(rows.get(at + by)));
}

function prefetch(row) {
  if (!row || !about.pictured) return;
  for (const what of whats()) new Image().src = picture(row.row, what, factorOf(row));
}
const whats = () => (labelling() ? ["case"] : showsDifference ? ["seed", "case", "difference"] : ["seed", "case"]);
const factorOf = (row) => ($("factor").value === "auto" ? row.factor : Number($("factor").value));

// One case

function draw() {
  const row = rows.get(at);
  $("stage").hidden = !row;
  $("empty").hidden = Boolean(row);
  if (!row) {
    $("empty").textContent = about.tests ? "Nothing matches the filters." : "There is nothing to show.";
    $("strip").replaceChildren();
    return progress();
  }
  drawWords(row);
  drawPictures(row);
  if (labelling()) drawGiven(row);
  for (const button of $("verdicts").children) button.ariaPressed = String(row.verdict === button.dataset.verdict);
  $("chips").replaceChildren(
    ...row.tags.map((tag) => make("li", {}, make("button", { type: "button", textContent: tag, title: "remove", data: { tag } })))
  );
  $("facts").replaceChildren(
    ...row.facts.map(([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value })))
  );
  drawOthers(row);
  drawStrip();
  progress();
}

function drawWords(row) {
  const place = make("span", { className: "place", textContent: `${at + 1} of ${list.total}` });
  if (labelling()) {
    const words = row.given === null ? ["Which class is this?"] : ["Labelled ", make("b", { textContent: about.classes[row.given][1] })];
    return $("what").replaceChildren(make("span", {}, ...words), make("span", { className: "file", textContent: row.title }), place);
  }
  const assumed = make("span", {}, "Should be ", make("b", { textContent: row.label }));
  const answer = make("b", { textContent: row.prediction ?? "hidden", className: row.failing ? "wrong" : "" });
  $("what").replaceChildren(assumed, make("span", {}, "model says ", answer), place);
}

function drawPictures(row) {
  const place = $("pictures");
  if (!about.pictured) return place.replaceChildren(valuesTable(row));
  const factor = factorOf(row);
  place.className = `pictures ${{ 1: "one", 2: "two", 3: "" }[whats().length]}`;
  place.replaceChildren(
    ...whats().map((what) => {
      const caption = what === "difference" ? `difference × ${factor}` : what;
      const image = make("img", { src: picture(row.row, what, factor), alt: labelling() ? row.title : caption, draggable: false, data: { what } });
      return make("figure", { className: what }, image, ...(labelling() ? [] : [make("figcaption", { textContent: caption })]));
    })
  );
}

function valuesTable(row) {
  const lines = labelling() ? row.values : row.changes;
  const heads = labelling() ? ["", "value"] : ["largest changes", "seed", "case"];
  const head = make("tr", {}, ...heads.map((text) => make("th", { scope: "col", textContent: text })));
  const body = lines.map((cells) =>
    make("tr", {}, ...cells.map((text, i) => make(i ? "td" : "th", { textContent: text })))
  );
  return make("table", { className: "values-table" }, make("thead", {}, head), make("tbody", {}, ...body));
}

function drawOthers(row) {
  const parts = row.others.flatMap(({ by, verdict, tags }, i) => [
    i ? ", " : "",
    `${by}: `,
    make("b", { className: verdict, textContent: verdict }),
    tags.length ? ` (${tags.join(", ")})` : "",
  ]);
  $("others").replaceChildren(...parts);
}

function drawStrip() {
  const items = [];
  for (let place = Math.max(0, at - BEFORE); place < Math.min(list.total, at - Math.min(at, BEFORE) + STRIP); place++) {
    const row = rows.get(place);
    if (!row) break;
    const button = make("button", { type: "button", className: labelling() ? (row.given === null ? "" : "given") : row.verdict, title: row.verdict || "not marked", data: { place } });
    button.append(about.pictured ? make("img", { src: picture(row.row, "case", 1), alt: "", loading: "lazy" }) : String(place + 1));
    if (place === at) button.ariaCurrent = "true";
    items.push(make("li", {}, button));
  }
  $("strip").replaceChildren(...items);
}

// Verdicts

function mark(change) {
  const row = rows.get(at);
  if (!row) return;
  const place = at;
  const body = labelling() ? { row: row.row, label: change.label } : { row: row.row, by: who, verdict: row.verdict, tags: row.tags, ...change };
  const moves = Boolean(change.verdict) || "label" in change;
  const before = done(row);
  Object.assign(row, labelling() ? { given: change.label } : change);
  list.done += done(row) - before;
  if (moves) pace();
  pending += 1;
  waiting();
  queue = queue.then(() => trying(async () => {
    try {
      Object.assign(row, await ask("api/mark", body));
    } catch (error) {
      await arrange({ keep: true }); // show what is on disk
      throw error;
    } finally {
      pending -= 1;
      waiting();
    }
    if (place === at) drawOthers(row);
    soon();
  }));
  trying(() => (moves ? go(forward(place)) : go(place)));
}

// The next case of the list; at its end, the first skipped one.
function forward(place) {
  if (place + 1 < list.total) return place + 1;
  const open = [...rows].filter(([, row]) => !done(row)).map(([other]) => other);
  if (open.length) return Math.min(...open);
  toast("That was the last case of this list.");
  return place;
}
const done = (row) => Number(labelling() ? row.given !== null : Boolean(row.verdict));

function undo() {
  queue = queue.then(() => trying(async () => {
    const answer = await ask("api/undo", { by: who });
    if (answer.row === null) return toast("Nothing to undo.");
    const place = [...rows].find(([, row]) => row.row === answer.row)?.[0];
    if (place === undefined) {
      await arrange({ keep: true });
      return toast(`Undone for case ${answer.row}, which is not in this list.`);
    }
    const row = rows.get(place);
    list.done -= done(row);
    Object.assign(row, answer);
    list.done += done(row);
    await go(place);
    soon();
  }));
}

const waiting = () => (document.body.dataset.pending = pending);
addEventListener("beforeunload", (event) => pending && event.preventDefault());

function pace() {
  const now = performance.now() / 1000;
  if (pace.last && now - pace.last < 120) times.push(now - pace.last);
  pace.last = now;
  if (times.length > 30) times.shift();
}

function progress() {
  const left = list.total - list.done;
  const typical = [...times].sort((a, b) => a - b)[Math.floor(times.length / 2)];
  const time = times.length >= 3 && left > 0 ? `, about ${duration(left * typical)} left` : "";
  $("bar").max = Math.max(1, list.total);
  $("bar").value = list.done;
  $("count").textContent = `${list.done} of ${list.total} ${labelling() ? "labelled" : "marked"}${time}`;
}

// Statistics

function soon() {
  clearTimeout(soon.timer);
  soon.timer = setTimeout(() => trying(refresh), 150);
}

async function refresh() {
  state = await ask(`api/state?${query({ by: who })}`);
  if (labelling()) return drawLabels();
  drawShare(state.share);
  const counts = Object.entries(state.mine).map(([name, n]) => pair(name, n));
  $("counts").replaceChildren(make("h3", { textContent: `Marked by ${who}` }), make("dl", {}, ...counts));
  drawAgreement();
  const chosen = $("tag-filter").value;
  options($("tag-filter"), [["", "all"], ...state.tags.map((tag) => [tag, tag])]);
  $("tag-filter").value = state.tags.includes(chosen) ? chosen : "";
  options($("known-tags"), state.tags.map((tag) => [tag, tag]));
}
const pair = (name, value) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value }));

function drawShare(share) {
  const what = share.of === "failures" ? "failures" : "cases";
  const parts = [make("h3", { textContent: `Valid among ${share.population} ${what}` })];
  if (share.share === null) {
    const points = Math.ceil(100 / Math.sqrt(Math.max(1, share.planned)));
    const text = `Mark the random sample in order: ${share.planned} ${what} give the share to within about ${points} points.`;
    return $("share").replaceChildren(...parts, make("p", { className: "faint", textContent: text }));
  }
  const range = make("i"), point = make("b");
  range.style.left = `${100 * share.lower}%`;
  range.style.right = `${100 * (1 - share.upper)}%`;
  point.style.left = `${100 * share.share}%`;
  const sure = `${percent(share.lower)} to ${percent(share.upper)} with ${percent(share.confidence)} confidence`;
  const basis = `${share.valid} of the first ${share.judged} of a random sample of ${share.planned}`;
  const rest = share.finished ? "The sample is complete." : "Holds whenever you stop; narrower once the sample is complete.";
  $("share").replaceChildren(
    ...parts,
    make("p", { className: "big", textContent: percent(share.share) }),
    make("div", { className: "interval" }, range, point),
    make("p", { textContent: sure }),
    make("p", { className: "faint", textContent: `${basis}. ${rest}` })
  );
}

function drawAgreement() {
  $("agreement").hidden = !state.agreement.length;
  const pairs = state.agreement.map(({ people, both, same, kappa }) =>
    pair(people.join(" and "), `${same} of ${both}, κ ${kappa === null ? "–" : kappa.toFixed(2)}`)
  );
  const differ = state.agreement.some(({ both, same }) => same < both);
  const show = make("button", { type: "button", className: "quiet", textContent: "Show where people differ", hidden: !differ });
  show.addEventListener("click", () => {
    for (const name of ["label", "prediction", "method", "tag-filter"]) $(name).value = "";
    $("order").value = "suite";
    $("show").value = "differ";
    trying(arrange);
  });
  $("agreement").replaceChildren(make("h3", { textContent: "Agreement" }), make("dl", {}, ...pairs), show);
}

function drawLabels() {
  const counts = Object.entries(state.mine).map(([name, n]) => pair(name, n));
  const done = state.labelled === state.tests;
  const text = done
    ? "All inputs are labelled: run `operant run` or `operant assess` again. New inputs to label appear here automatically."
    : "Every label is saved immediately.";
  $("share").replaceChildren(
    make("h3", { textContent: "Labelled" }),
    make("p", { className: "big", textContent: `${state.labelled} of ${state.tests}` }),
    make("p", { className: "faint", textContent: text }),
    ...state.notes.map((note) => make("p", { className: "note", textContent: note }))
  );
  $("counts").hidden = !counts.length;
  $("counts").replaceChildren(make("h3", { textContent: "By class" }), make("dl", {}, ...counts));
}
