"use strict"; // continues page.js: the list of classes on pages for labels

const DIGITS = 10; // classes with a key of their own
const picker = {
  all: [], // { label, name, simple, words, item }
  shown: [], // those that match the search, best first
  active: -1, // place among them that Enter chooses
  browsing: false, // whether arrows move through the list
};
const plain = (text) => text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
const breakable = (name) => name.split(/(?<=[_\-./])/).flatMap((part, i) => (i ? [make("wbr"), part] : [part])); // lines end between words
const searching = () => document.activeElement === $("search");

function setUpClasses() {
  const examples = new Set(about.examples);
  picker.all = about.classes.map(([label, name]) => {
    const item = make("li", { id: `class-${label}`, title: name, data: { label } });
    item.setAttribute("role", "option");
    if (examples.has(label)) item.append(make("img", { src: picture(label, "example"), alt: "", loading: "lazy", draggable: false }));
    item.append(make("span", { className: "class-name" }, ...breakable(name)), make("kbd", { ariaHidden: "true" }));
    const simple = plain(name);
    return { label, name, simple, words: simple.split(/[^\p{L}\p{N}]+/u), item };
  });
  $("picker").hidden = false;
  $("classes").classList.toggle("pictured", examples.size > 0);
  $("classes").classList.toggle("many", picker.all.length > 2 * DIGITS);
  $("search").placeholder = `Search ${picker.all.length} classes`;
  $("search").addEventListener("input", () => filterClasses());
  $("search").addEventListener("keydown", searchKey);
  for (const kind of ["focus", "blur"]) $("search").addEventListener(kind, drawKeys);
  $("classes").addEventListener("mousedown", (event) => event.preventDefault()); // the search keeps the focus
  $("classes").addEventListener("click", (event) => {
    const item = event.target.closest("li");
    if (item) choose(Number(item.dataset.label));
  });
  const longest = Math.max(...picker.all.map(({ name }) => name.length));
  $("classes").style.setProperty("--longest", `${Math.min(longest, 24)}ch`);
  filterClasses();
}

// With few classes, keys choose at once; with many, one types. A touch screen would cover the page with its keyboard.
function focusSearch() {
  if (picker.all.length > DIGITS && !matchMedia("(pointer: coarse)").matches) $("search").focus();
}

// The classes whose names contain every word of a text; names that begin with it come first, then those with a word that does.
function matching(text) {
  const whole = plain(text).trim();
  const rank = ({ simple, words }) => (simple.startsWith(whole) ? 0 : words.some((word) => word.startsWith(whole)) ? 1 : 2);
  const parts = whole.split(/\s+/);
  return picker.all.filter(({ simple }) => parts.every((part) => simple.includes(part))).sort((a, b) => rank(a) - rank(b));
}

function filterClasses() {
  const text = $("search").value.trim();
  picker.shown = matching(text);
  picker.browsing = false;
  $("classes").replaceChildren(...picker.shown.map(({ item }) => item));
  $("classes").scrollTop = 0;
  $("found").textContent = text ? (picker.shown.length ? `${picker.shown.length} of ${picker.all.length}` : "no such class") : "";
  activate(text && picker.shown.length ? 0 : -1);
  drawKeys();
}

function activate(place) {
  picker.active = place;
  const chosen = picker.shown[place]?.item;
  for (const { item } of picker.all) item.ariaSelected = String(item === chosen);
  if (chosen) $("search").setAttribute("aria-activedescendant", chosen.id);
  else $("search").removeAttribute("aria-activedescendant");
  chosen?.scrollIntoView({ block: "nearest" });
}

// A digit chooses, unless it is part of a name that one may be typing.
const isTyped = (digit) => searching() && matching($("search").value + digit).length > 0;

// The class that each digit chooses: the one of that name (0: also 10); digits that name none choose the others by place.
function classesByKey() {
  const named = new Map(picker.all.filter(({ name }) => /^[0-9]$/.test(name)).map((one) => [one.name, one]));
  const ten = picker.all.find(({ name }) => name === "10");
  if (ten && !named.has("0")) named.set("0", ten);
  const own = new Set(named.values());
  const others = picker.shown.filter((one) => !own.has(one));
  const keys = Array.from({ length: DIGITS }, (_, digit) => String(digit));
  const chosen = keys.map((key) => [key, named.has(key) ? named.get(key) : others.shift()]);
  return new Map(chosen.filter(([, one]) => picker.shown.includes(one)));
}

function drawKeys() {
  picker.all.forEach(({ item }) => (item.lastChild.hidden = true));
  classesByKey().forEach(({ item, name }, key) => {
    item.lastChild.textContent = key;
    item.lastChild.hidden = isTyped(key);
    item.lastChild.classList.toggle("same", name === key); // says the same as the name
  });
  const digits = picker.shown.some(({ item }) => !item.lastChild.hidden) ? [["0–9", "choose"]] : [];
  $("hints").replaceChildren(...hints(digits).map(([key, text]) => make("span", {}, ...key.split(" ").map((one) => make("kbd", { textContent: one })), ` ${text}`)));
}

// What the keys do now.
function hints(digits) {
  if (!searching()) return [...digits, ["/", "search"], ["u", "undo"], ["s", "skip if unsure"], ["← →", "back, next"], ["?", "all keys"]];
  if ($("search").value) return [["Enter", "choose"], ...digits, ["↓ ↑", "move"], ["Esc", "clear"]];
  return [["A–Z", "filter"], ["↓", "browse"], ...digits, ["Ctrl+Z", "undo"], ["Esc", "then s skip, u undo"]];
}

// Marks the class that an input has.
function drawGiven(row) {
  for (const { label, item } of picker.all) {
    item.classList.toggle("given", label === row.given);
    item.ariaCurrent = label === row.given ? "true" : null;
  }
}

function choose(label) {
  mark({ label });
  clearSearch();
}

function chooseShown(place) {
  if (picker.shown[place]) choose(picker.shown[place].label);
}

function chooseKey(key) {
  const chosen = classesByKey().get(key);
  if (chosen) choose(chosen.label);
}

function clearSearch() {
  $("search").value = "";
  filterClasses();
}

function startSearch() {
  $("search").focus();
  $("search").select();
}

// Moves through the list as it is laid out; from nowhere, to its first class.
function moveActive(right, down) {
  if (!picker.shown.length) return;
  picker.browsing = true;
  const top = picker.shown[0].item.offsetTop;
  const columns = Math.max(1, picker.shown.filter(({ item }) => item.offsetTop === top).length);
  const place = picker.active < 0 ? 0 : picker.active + right + down * columns;
  if (place >= 0 && place < picker.shown.length) activate(place);
}

const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

function searchKey(event) {
  if (event.isComposing) return;
  const sideways = event.key === "ArrowLeft" || event.key === "ArrowRight";
  const empty = $("search").value === "";
  const handle = (work) => (event.preventDefault(), event.stopPropagation(), work());
  if (event.ctrlKey || event.metaKey) return event.key === "z" && empty ? handle(undo) : undefined;
  if (event.altKey) return;
  if (event.key === "Enter") return handle(() => event.repeat || chooseShown(picker.active));
  if (event.key === "Escape") return handle(() => (empty && !picker.browsing ? $("search").blur() : clearSearch()));
  if (sideways && !picker.browsing) return empty ? handle(() => move(ARROWS[event.key][0])) : undefined; // else the caret moves
  if (event.key in ARROWS) return handle(() => moveActive(...ARROWS[event.key]));
  if (/^[0-9]$/.test(event.key) && !isTyped(event.key)) return handle(() => event.repeat || chooseKey(event.key));
}
