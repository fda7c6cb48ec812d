"use strict";
const root = document.documentElement;
root.classList.add("js"); // before anything is drawn
addEventListener("DOMContentLoaded", () => {
  // Light or dark: as the system has it until somebody asks for the other.
  const dark = () =>
    root.classList.contains("dark") ||
    (!root.classList.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
  document.getElementById("theme").addEventListener("click", () => {
    const next = dark() ? "light" : "dark";
    root.classList.remove("light", "dark");
    root.classList.add(next);
  });

  // In print, everything that is folded is open.
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => (d.open = true)));

  const list = document.getElementById("cards");
  if (!list) return;
  const all = [...list.children];
  const sort = document.getElementById("sort");
  const filters = [...document.querySelectorAll("[data-filter]")];
  const learned = document.getElementById("learned");
  const count = document.getElementById("count");
  const more = document.getElementById("more");
  const PAGE = 48;
  let shown = all; // those that pass the filters, in order
  let room = PAGE; // how many of them are on the page

  // Some at a time, so that what follows is never far.
  const reveal = () => {
    const wanted = new Set(shown.slice(0, room));
    all.forEach((card) => (card.hidden = !wanted.has(card)));
    more.hidden = shown.length <= room;
    more.textContent = `Show ${Math.min(PAGE, shown.length - room)} more of ${shown.length}`;
  };
  const upTo = (at) => {
    if (at < room) return;
    room = (Math.floor(at / PAGE) + 1) * PAGE;
    reveal();
  };
  more.addEventListener("click", () => upTo(room));
  reveal();

  // Sort and filter.
  const arrange = () => {
    const falling = sort.value.startsWith("-");
    const key = sort.value.replace("-", "");
    const order = (a, b) => (Number(a.dataset[key]) - Number(b.dataset[key])) * (falling ? -1 : 1);
    const kept = (card) =>
      filters.every((f) => f.value === "" || card.dataset[f.dataset.filter] === f.value) &&
      (!learned.checked || card.dataset.learned === "1");
    const sorted = [...all].sort((a, b) => order(a, b) || a.dataset.rank - b.dataset.rank);
    shown = sorted.filter(kept);
    room = PAGE;
    list.append(...shown, ...sorted.filter((card) => !kept(card))); // those in front are printed
    all.forEach((card) => (card.tabIndex = -1));
    if (shown.length) shown[0].tabIndex = 0;
    reveal();
    count.textContent = shown.length === 1 ? "1 failure" : `${shown.length} failures`;
  };
  [sort, learned, ...filters].forEach((control) => control.addEventListener("change", arrange));
  document.querySelector(".controls").addEventListener("submit", (event) => event.preventDefault());

  // From card to card.
  const focus = (card) => {
    upTo(shown.indexOf(card));
    shown.forEach((other) => (other.tabIndex = -1));
    card.tabIndex = 0;
    card.focus();
    card.scrollIntoView({ block: "nearest" });
  };
  const columns = () => {
    const top = shown[0].offsetTop;
    const n = shown.findIndex((card) => card.offsetTop !== top);
    return n < 0 ? shown.length : n;
  };
  list.addEventListener("keydown", (event) => {
    const at = shown.indexOf(event.target);
    if (at < 0) return;
    const move = {
      ArrowRight: () => at + 1,
      ArrowLeft: () => at - 1,
      ArrowDown: () => at + columns(),
      ArrowUp: () => at - columns(),
      Home: () => 0,
      End: () => shown.length - 1,
    }[event.key];
    if (move) {
      event.preventDefault();
      const to = shown[move()];
      if (to) focus(to);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      enlarge(at);
    }
  });
  list.addEventListener("click", (event) => {
    const at = shown.indexOf(event.target.closest(".card"));
    if (at >= 0) enlarge(at);
  });

  // One failure, large.
  const dialog = document.getElementById("large");
  const place = document.getElementById("enlarged");
  let open = 0;
  const enlarge = (at) => {
    open = at;
    const copy = shown[at].cloneNode(true);
    ["seed", "case", "difference"].forEach((word, i) => {
      const picture = copy.querySelectorAll(".pictures img")[i];
      if (!picture) return;
      const figure = document.createElement("figure");
      const caption = document.createElement("figcaption");
      caption.textContent = word;
      picture.loading = "eager";
      picture.replaceWith(figure);
      figure.append(picture, caption);
    });
    place.replaceChildren(...copy.childNodes);
    if (!dialog.open) dialog.showModal();
  };
  const step = (by) => {
    if (shown[open + by]) enlarge(open + by);
  };
  document.getElementById("previous").addEventListener("click", () => step(-1));
  document.getElementById("next").addEventListener("click", () => step(1));
  document.getElementById("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight") step(1);
    if (event.key === "ArrowLeft") step(-1);
  });
  dialog.addEventListener("close", () => shown[open] && focus(shown[open]));
});
