// The charts of a run, or of two runs, over time: they share the time that is shown.

import { Chart, fetchJson } from "./charts.js";

const WAIT_MS = 120;
const ZOOM = 2;

/** Return the lines of a chart's data; those of a second result are dashed. */
function linesOf(data, letter, dashed) {
  const prefix = letter ? `${letter}: ` : "";
  const lines = data.lines.map((line, i) => ({ ...line, hue: i, dashed: dashed || i >= 8 }));
  const bands = data.bands.map((band, i) => ({ ...band, hue: i, dashed }));
  return [...lines, ...bands].map((line) => ({ ...line, name: prefix + line.name }));
}

function outagesOf(data, letter) {
  const prefix = letter ? `${letter}: ` : "";
  return data.outages.map((each) => ({ ...each, name: prefix + each.name }));
}

/** Return the range of a chart that is not over time; undefined: that of its lines. */
function rangeOf({ kind, bars }) {
  return kind === "stacks" ? [-0.5, bars.length - 0.5] : undefined;
}

class TimePage {
  constructor(form) {
    this.form = form;
    this.end = Number(form.dataset.end);
    this.sources = Object.entries(JSON.parse(form.dataset.sources));
    this.range = [0, this.end];
    this.charts = [...document.querySelectorAll("[data-chart]")].map((figure) => ({
      name: figure.dataset.chart,
      place: figure.querySelector(".plot"),
      chart: null,
    }));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.show(form.elements.from.valueAsNumber, form.elements.to.valueAsNumber);
    });
    form.elements.in.addEventListener("click", () => this.zoom(1 / ZOOM));
    form.elements.out.addEventListener("click", () => this.zoom(ZOOM));
    form.elements.all.addEventListener("click", () => this.show(0, this.end));
    this.load();
  }

  zoom(factor) {
    const [from, to] = this.range;
    const middle = (from + to) / 2;
    const half = ((to - from) * factor) / 2;
    this.show(middle - half, middle + half);
  }

  show(from, to) {
    const first = Math.max(0, Number.isFinite(from) ? from : 0);
    const last = Math.min(this.end, Number.isFinite(to) ? to : this.end);
    if (!(last > first)) return;
    this.range = [first, last];
    this.form.elements.from.value = Number(first.toPrecision(6));
    this.form.elements.to.value = Number(last.toPrecision(6));
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), WAIT_MS);
  }

  load() {
    this.abort?.abort();
    this.abort = new AbortController();
    for (const each of this.charts) this.loadChart(each, this.range, this.abort.signal);
  }

  /** Return how a chart is drawn; those over time share the time that is shown. */
  optionsOf({ kind, unit, steps, x_label: xUnit, bars }) {
    if (kind === "stacks") return { unit, xUnit, xLabels: bars, stacked: true };
    if (kind === "distribution") return { unit, xUnit };
    return {
      unit,
      steps,
      sync: "time",
      onSelect: (first, last) => this.show(first, last),
      onReset: () => this.show(0, this.end),
    };
  }

  async loadChart(each, range, signal) {
    const [from, to] = range;
    const query = `from=${from}&to=${to}`;
    try {
      const found = await Promise.all(
        this.sources.map(([, path]) =>
          fetchJson(`/data/chart/${each.name}/${path}?${query}`, signal),
        ),
      );
      each.chart ??= new Chart(each.place, this.optionsOf(found[0]));
      const shown = found[0].kind === "time" ? range : rangeOf(found[0]);
      const lines = found.flatMap((data, i) => linesOf(data, this.sources[i][0], i > 0));
      const outages = found.flatMap((data, i) => outagesOf(data, this.sources[i][0]));
      each.chart.show(lines, shown, outages);
    } catch (error) {
      if (error.name === "AbortError") return;
      each.place.replaceChildren(
        Object.assign(document.createElement("p"), {
          className: "notice",
          textContent: `The chart cannot be loaded: ${error.message}`,
        }),
      );
      each.chart = null;
    }
  }
}

const form = document.getElementById("zoom");
if (form) new TimePage(form);
