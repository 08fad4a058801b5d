// A lab while it runs: rates and queues of the last ten minutes.

import { Chart, number } from "./charts.js";
import { follow } from "./follow.js";

const KEPT_S = 600;
const root = document.getElementById("lab");
const state = document.getElementById("state");
const history = new Map();
const charts = [...root.querySelectorAll("[data-live]")].map((figure) => ({
  value: figure.dataset.live,
  chart: new Chart(figure.querySelector(".plot"), {
    unit: figure.dataset.live === "queue_kb" ? "kB" : "Mbit/s",
    steps: false,
    sync: "live",
  }),
}));

function remember(sample) {
  for (const direction of sample.directions) {
    const kept = history.get(direction.name) ?? { x: [], rate_mbps: [], queue_kb: [] };
    history.set(direction.name, kept);
    if (kept.x.at(-1) === sample.at_s) continue;
    kept.x.push(sample.at_s);
    kept.rate_mbps.push(direction.rate_mbps);
    kept.queue_kb.push(direction.queue_kb);
    const old = kept.x.findIndex((at) => at >= sample.at_s - KEPT_S);
    if (old > 0) for (const values of Object.values(kept)) values.splice(0, old);
  }
}

function draw() {
  for (const { value, chart } of charts) {
    const lines = [...history].map(([name, kept], i) => ({
      name,
      x: [...kept.x],
      y: [...kept[value]],
      hue: i,
      dashed: i >= 8,
    }));
    chart.show(lines);
  }
}

function row(texts) {
  const made = document.createElement("tr");
  texts.forEach((text, i) => {
    const cell = document.createElement("td");
    cell.textContent = text;
    if (i === 0) cell.className = "text";
    made.append(cell);
  });
  return made;
}

function lost(counts) {
  const causes = Object.entries(counts).map(
    ([cause, packets]) => `${packets.toLocaleString("en")} ${cause.replaceAll("_", " ")}`,
  );
  return causes.length ? causes.join(", ") : "0";
}

function tables(sample) {
  document.querySelector("#directions tbody").replaceChildren(
    ...sample.directions.map((each) =>
      row([
        each.name,
        each.rate_mbps.toFixed(2),
        each.queue_packets.toLocaleString("en"),
        number(each.queue_kb),
        each.delivered_packets.toLocaleString("en"),
        lost(each.lost),
      ]),
    ),
  );
  const late = sample.late_us;
  const cells = document.querySelectorAll("#lateness tbody td");
  [late.p50, late.p99, late.max].forEach((value, i) => {
    cells[i].textContent = number(value);
  });
  const items = sample.changes.map((change) =>
    Object.assign(document.createElement("li"), {
      textContent: `${change.at_s.toFixed(1)} s: ${change.settings}`,
    }),
  );
  if (items.length) document.getElementById("changes").replaceChildren(...items);
}

follow(
  `/events/lab/${encodeURIComponent(root.dataset.name)}`,
  {
    sample: (sample) => {
      remember(sample);
      draw();
      tables(sample);
      document.getElementById("at").textContent = Math.round(sample.at_s);
      const problem = sample.failure ?? sample.verdict;
      const notice = document.getElementById("verdict");
      notice.hidden = !problem;
      notice.textContent = problem ? `INVALID: ${problem}.` : "";
    },
    ended: () => {
      state.textContent = "the lab has ended";
    },
  },
  (isLost) => {
    root.dataset.lost = String(isLost);
  },
);
