"use strict"; // continues page.js

// Keys

const move = (by) => trying(() => go(at + by));
const focusTag = () => $("tag").focus();
const skip = () => trying(() => go(forward(at)));
const KEYS = {
  verdicts: [
    ["v 1", "valid", () => mark({ verdict: "valid" })],
    ["x 2", "invalid", () => mark({ verdict: "invalid" })],
    ["u 3", "unsure", () => mark({ verdict: "unsure" })],
    ["c 0", "clear the verdict", () => mark({ verdict: "" })],
    ["z", "undo", undo],
    ["n", "next unmarked case", () => trying(rearrange)],
  ],
  labels: [
    ["0 1 2 3 4 5 6 7 8 9", "the class that shows this key", chooseKey],
    ["/", "search a class: arrows move, Enter chooses, Esc clears, then leaves", startSearch],
    ["↓ ↑", "move through the classes", (key) => (startSearch(), moveActive(0, key === "↓" ? 1 : -1))],
    ["s", "skip if unsure", skip],
    ["u z", "undo", undo],
    ["n", "next without a label", () => trying(rearrange)],
  ],
  both: [
    ["→ j", "next", () => move(1)],
    ["← k", "back", () => move(-1)],
  ],
  more: [
    ["t", "tag what changed, Enter adds it", focusTag],
    ["d", "difference on or off", toggleDifference],
    ["+", "amplify the difference more", () => amplify(1)],
    ["-", "amplify it less", () => amplify(-1)],
    ["s", "hold: the seed in place of the case", () => swap(true)],
    ["b", "blind: hide the model’s answers", () => $("blind").click()],
  ],
  last: [["?", "these keys", () => $("keys").showModal()]],
};
const NAMES = { ArrowRight: "→", ArrowLeft: "←", ArrowDown: "↓", ArrowUp: "↑", "=": "+" };

function keysNow() {
  if (labelling()) return [...KEYS.labels, ...KEYS.both, ...KEYS.last];
  return [...KEYS.verdicts, ...KEYS.both, ...KEYS.more, ...KEYS.last];
}

async function rearrange(options) {
  await queue; // the server must have all verdicts first
  await arrange(options);
}

function toggleDifference() {
  showsDifference = !showsDifference;
  draw();
}

function amplify(by) {
  const row = rows.get(at);
  if (!row || !about.pictured) return;
  const factors = about.factors;
  const place = Math.max(0, Math.min(factors.length - 1, factors.indexOf(factorOf(row)) + by));
  $("factor").value = String(factors[place]);
  showsDifference = true;
  draw();
}

function swap(on) {
  const row = rows.get(at), image = document.querySelector(".case img");
  if (row && image) image.src = picture(row.row, on ? "seed" : "case", 1);
}

addEventListener("keydown", (event) => {
  const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
  if (event.target === $("tag") && event.key === "Escape") return $("tag").blur();
  if (typing || document.querySelector("dialog[open]") || event.altKey) return;
  if (event.ctrlKey || event.metaKey) {
    if (event.key === "z") (event.preventDefault(), undo());
    return;
  }
  if (event.repeat && !event.key.startsWith("Arrow")) return;
  const key = NAMES[event.key] ?? event.key.toLowerCase();
  const found = keysNow().find(([keys]) => keys.split(" ").includes(key));
  if (!found) return;
  event.preventDefault();
  found[2](key);
});
addEventListener("keyup", (event) => event.key.toLowerCase() === "s" && !labelling() && swap(false));

// Setting up

function setUp() {
  document.title = `${about.title}: triage`;
  $("title").textContent = about.title;
  root.classList.toggle("labels", labelling());
  root.classList.toggle("values", !about.pictured);
  document.body.classList.toggle("small", about.small);
  $("blind").checked = about.blind;
  const shows = [["all", "all"], ["todo", "not marked yet"], ["done", "marked"]];
  if (labelling()) return setUpLabels(shows);
  options($("show"), [...shows, ["valid", "valid"], ["invalid", "invalid"], ["unsure", "unsure"], ["differ", "where people differ"]]);
  options($("order"), [
    ["sample", `random sample of ${about.planned}`],
    ...(about.failures ? [["ranked", "failures, most likely first"]] : []),
    ["suite", "as in the suite"],
    ...about.columns.flatMap((name) => [[`-${name}`, `${name}, largest first`], [name, `${name}, smallest first`]]),
  ]);
  options($("label"), [["", "all"], ...about.labels]);
  options($("prediction"), [["", "all"], ...about.predictions]);
  options($("method"), [["", "all"], ...about.methods.map((name) => [name, name])]);
  options($("tag-filter"), [["", "all"]]);
  options($("factor"), [["auto", "automatic"], ...about.factors.map((n) => [String(n), `× ${n}`])]);
  $("verdicts").replaceChildren(
    ...Object.entries(VERDICTS).map(([verdict, key]) => {
      const button = make("button", { type: "button", className: verdict, data: { verdict } }, verdict[0].toUpperCase() + verdict.slice(1), make("kbd", { textContent: key }));
      button.addEventListener("click", () => mark({ verdict }));
      return button;
    })
  );
  const meanings = [
    ["Valid", "it still shows what its label says, and could occur in the field."],
    ["Invalid", "it shows something else, or nothing recognisable."],
    ["Unsure", "you cannot say; it counts as not valid until somebody decides."],
  ];
  $("meaning").replaceChildren(...meanings.map(([name, text]) => make("p", {}, make("b", { textContent: `${name}: ` }), text)));
}

function setUpLabels(shows) {
  options($("show"), shows.map(([value, text]) => [value, text.replace("marked", "labelled")]));
  $("verdicts").hidden = $("tags").hidden = true;
  $("undo").lastChild.textContent = "u";
  $("stage").removeAttribute("aria-live"); // or the whole list would be read
  $("what").ariaLive = "polite";
  setUpClasses();
  setInterval(() => document.hidden || trying(more), 4000); // a campaign may add inputs
}

async function more() {
  const before = state?.tests;
  await refresh();
  if (state.tests !== before) await arrange();
}

function listen() {
  $("theme").addEventListener("click", () => {
    const dark = root.classList.contains("dark") || (!root.classList.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
    root.classList.remove("light", "dark");
    root.classList.add(dark ? "light" : "dark");
  });
  $("help").addEventListener("click", () => $("keys").showModal());
  $("undo").addEventListener("click", undo);
  $("previous").addEventListener("click", () => move(-1));
  $("next").addEventListener("click", () => move(1));
  for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
  for (const dialog of document.querySelectorAll("dialog")) dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.querySelector(".controls").addEventListener("submit", (event) => event.preventDefault());
  document.querySelector(".controls").addEventListener("change", (event) => {
    if (event.target.id === "factor") return draw();
    root.classList.toggle("blind", blind());
    event.target.blur(); // keys mark cases again
    trying(() => rearrange({ keep: event.target.id === "blind" }));
  });
  $("strip").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) trying(() => go(Number(button.dataset.place)));
  });
  $("chips").addEventListener("click", (event) => {
    const tag = event.target.dataset.tag;
    if (tag) mark({ tags: rows.get(at).tags.filter((other) => other !== tag) });
  });
  $("tags").addEventListener("submit", (event) => {
    event.preventDefault();
    const word = $("tag").value.replaceAll(",", " ").trim().replace(/\s+/g, " ");
    $("tag").value = "";
    $("tag").blur(); // keys mark cases again
    if (!word) return;
    mark({ tags: [...new Set([...rows.get(at).tags, word])] });
  });
  $("who").addEventListener("click", () => {
    $("name").value = who;
    $("naming").showModal();
  });
  $("naming-form").addEventListener("submit", (event) => {
    event.preventDefault();
    $("naming").close();
    $("who").blur(); // keys mark cases again
    trying(() => become($("name").value.replaceAll(",", " ").trim().replace(/\s+/g, " ")));
  });
}

async function become(name) {
  who = name || who;
  sessionStorage.setItem("operant-triage-by", who); // a tab belongs to one person
  $("who").textContent = who;
  times.length = 0;
  await arrange();
}

async function begin() {
  history.replaceState(null, "", location.pathname); // the token is in a cookie now
  const phone = matchMedia("(max-width: 44rem), (max-height: 32rem)"); // as in page.css
  const fold = () => (document.querySelector(".filters").open = !phone.matches);
  phone.addEventListener("change", fold);
  fold();
  about = await ask("api/about");
  setUp();
  $("key-list").replaceChildren(
    ...keysNow().flatMap(([keys, meaning]) => [make("dt", {}, ...keys.replace(/0 1.*9/, "0–9").split(" ").map((key) => make("kbd", { textContent: key }))), make("dd", { textContent: meaning })])
  );
  listen();
  root.classList.toggle("blind", blind());
  waiting();
  if (about.rejected?.length) toast(about.rejected.join(" "));
  await become(sessionStorage.getItem("operant-triage-by") || about.by);
  if (labelling()) focusSearch();
  document.body.dataset.ready = "1";
}
trying(begin);
