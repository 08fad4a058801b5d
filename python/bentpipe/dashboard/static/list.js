// The list of results: sorted, filtered, some of them chosen, and updated by itself.

import { follow } from "./follow.js";

const list = document.getElementById("list");
const filter = document.getElementById("filter");
const count = document.getElementById("count");
const COMPARED_MAX = 8;
// The newest first: a running result, of now, before dates.
const state = { column: "ended", descending: true, chosen: new Set() };
const collator = new Intl.Collator("en", { numeric: true });

function rows() {
  return [...list.querySelectorAll("#entries tbody tr")];
}

function cell(row, column) {
  return row.querySelector(`.c-${column}`).textContent.trim();
}

function sort() {
  const sign = state.descending ? -1 : 1;
  const ordered = rows().sort((a, b) => {
    const [first, second] = [cell(a, state.column), cell(b, state.column)];
    // What has no value comes last in both orders.
    if (!first || !second) return Number(!first) - Number(!second);
    return sign * collator.compare(first, second);
  });
  list.querySelector("#entries tbody")?.append(...ordered);
  for (const button of list.querySelectorAll("#entries th button")) {
    const own = button.dataset.column === state.column;
    const order = state.descending ? "descending" : "ascending";
    button.closest("th").setAttribute("aria-sort", own ? order : "none");
  }
}

function applyFilter() {
  const words = filter.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
  const kind = filter.elements.kind.value;
  let shown = 0;
  for (const row of rows()) {
    const text = row.textContent.toLowerCase();
    const fits = words.every((word) => text.includes(word));
    row.hidden = !fits || (kind !== "" && row.dataset.kind !== kind);
    shown += Number(!row.hidden);
  }
  const total = rows().length;
  count.textContent = shown === total ? `${total} results` : `${shown} of ${total} results`;
}

function applyChoice() {
  const boxes = [...list.querySelectorAll("input[name=result]")];
  for (const box of boxes) box.checked = state.chosen.has(box.value);
  const chosen = boxes.filter((box) => box.checked).length;
  const button = list.querySelector("#compare button[type=submit]");
  if (button) button.disabled = chosen < 2 || chosen > COMPARED_MAX;
}

function update() {
  // Kinds that are new have no choice yet.
  const known = new Set([...filter.elements.kind.options].map((option) => option.value));
  for (const row of rows()) {
    const { kind } = row.dataset;
    if (kind && !known.has(kind)) {
      known.add(kind);
      filter.elements.kind.add(new Option(kind, kind));
    }
  }
  sort();
  applyFilter();
  applyChoice();
}

list.addEventListener("click", (event) => {
  const button = event.target.closest("th button");
  if (!button) return;
  const { column } = button.dataset;
  state.descending = state.column === column && !state.descending;
  state.column = column;
  sort();
});
list.addEventListener("change", (event) => {
  const { value, checked } = event.target;
  if (checked) state.chosen.add(value);
  else state.chosen.delete(value);
  applyChoice();
});
filter.addEventListener("input", applyFilter);
filter.addEventListener("submit", (event) => event.preventDefault());

async function reload(version) {
  const focused = document.activeElement;
  const key = focused?.value ?? focused?.dataset?.column ?? focused?.getAttribute?.("href");
  const inside = list.contains(focused);
  const reply = await fetch("/list");
  if (!reply.ok) return;
  const made = new DOMParser().parseFromString(await reply.text(), "text/html");
  list.replaceChildren(...made.body.childNodes);
  list.dataset.version = version;
  update();
  if (inside && key) {
    const same = [...list.querySelectorAll("a, input, button")].find(
      (each) => (each.dataset.column ?? each.getAttribute("href") ?? each.value) === key,
    );
    same?.focus();
  }
}

update();
follow("/events/list", {
  list: ({ version }) => {
    if (version !== list.dataset.version) reload(version);
  },
});
