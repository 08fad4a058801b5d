// A metric of a sweep over a varied value, and the progress of a sweep that runs.

import { Chart, fetchJson, number } from "./charts.js";
import { follow } from "./follow.js";

const MINUTE_S = 60;

function element(tag, text, className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = className;
  return made;
}

/** Replace the options of a select; keep its value where it is still one. */
function setOptions(select, options, wanted) {
  const before = wanted ?? select.value;
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  if (options.some(([value]) => value === before)) select.value = before;
}

class View {
  constructor(form) {
    this.form = form;
    this.choices = JSON.parse(form.dataset.choices);
    this.place = document.querySelector(".plot");
    const wanted = Object.fromEntries(new URLSearchParams(location.search));
    setOptions(form.elements.metric, this.choices.metrics, wanted.metric);
    const paths = this.choices.axes.flatMap((axis) => axis.paths);
    setOptions(form.elements.x, paths.map((path) => [path, path]), wanted.x);
    this.update(wanted);
    form.addEventListener("change", () => {
      this.update({});
      this.load();
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    this.load();
  }

  axisOf(path) {
    return this.choices.axes.findIndex((axis) => axis.paths.includes(path));
  }

  /** Offer what is left: entries of the metric's table, lines of other axes, the other values. */
  update(wanted) {
    const { metric, of, x, by } = this.form.elements;
    const [table] = metric.value.split(".");
    const all = ["", table === "flows" ? "all flows" : "all directions"];
    const parts = this.choices.parts[table].map((name) => [name, name]);
    setOptions(of, parts.length > 1 ? [all, ...parts] : [all], wanted.of);
    const others = this.choices.axes
      .filter((axis) => !axis.paths.includes(x.value))
      .flatMap((axis) => axis.paths)
      .map((path) => [path, path]);
    const first = this.started ? undefined : (wanted.by ?? others[0]?.[0]);
    setOptions(by, [["", "one line"], ...others], first);
    this.started = true;
    this.offerFixed([this.axisOf(x.value), this.axisOf(by.value)], wanted);
  }

  offerFixed(drawn, wanted) {
    const place = document.getElementById("fixed");
    const before = Object.fromEntries(new FormData(this.form));
    place.replaceChildren();
    this.choices.axes.forEach((axis, i) => {
      if (drawn.includes(i) || axis.labels.length < 2) return;
      const select = element("select", "");
      select.name = `axis${i}`;
      const options = axis.labels.map((label, row) => [String(row), label]);
      setOptions(select, options, wanted[select.name] ?? before[select.name]);
      const label = element("label", `${axis.paths.join(", ")} `);
      label.append(select);
      place.append(label);
    });
  }

  async load() {
    const query = new URLSearchParams(new FormData(this.form)).toString();
    history.replaceState(null, "", `?${query}`);
    for (const link of document.querySelectorAll(".files a")) link.search = query;
    this.abort?.abort();
    this.abort = new AbortController();
    const { path } = this.form.dataset;
    try {
      this.show(await fetchJson(`/data/sweep/${path}?${query}`, this.abort.signal));
    } catch (error) {
      if (error.name === "AbortError") return;
      this.place.replaceChildren(element("p", `The chart cannot be loaded: ${error.message}`, "notice"));
    }
  }

  show(data) {
    const unit = data.unit ? ` [${data.unit}]` : "";
    const xUnit = data.x_unit ? ` [${data.x_unit}]` : "";
    const title = `${data.title}${unit} over ${data.x}`;
    document.querySelector(".chart figcaption b").textContent = `${title}.`;
    this.place.setAttribute("aria-label", title);
    document.getElementById("left-out").textContent = data.left_out
      ? `${data.left_out} more lines are not drawn.`
      : "";
    const lines = data.lines.map((line, i) => ({ ...line, hue: i, dashed: i >= 8 }));
    this.chart ??= new Chart(this.place, {});
    this.chart.options = {
      unit: data.unit,
      xUnit: `${data.x}${xUnit}`,
      xLabels: data.labels,
      log: data.log,
      markers: true,
    };
    const at = lines.flatMap((line) => line.x);
    const range = data.labels ? [-0.5, data.labels.length - 0.5] : undefined;
    this.chart.show(lines, range ?? padded(at, data.log));
    this.table(data, unit, xUnit);
  }

  table(data, unit, xUnit) {
    const by = this.form.elements.by.value;
    const head = element("tr", "");
    const names = [...(by ? [by] : []), `${data.x}${xUnit}`, `mean${unit}`, "low", "high", "runs"];
    head.append(...names.map((name, i) => element("th", name, i < names.length - 4 ? "text" : "")));
    document.querySelector("#points thead").replaceChildren(head);
    const rows = data.lines.flatMap((line) =>
      line.x.map((at, i) => {
        const row = element("tr", "");
        const label = data.labels ? data.labels[at] : number(at);
        const cells = [line.y[i], line.low[i], line.high[i]].map(number);
        const texts = [...(by ? [line.name] : []), label, ...cells, String(line.runs[i])];
        row.append(...texts.map((text, j) => element("td", text, j < texts.length - 4 ? "text" : "")));
        return row;
      }),
    );
    document.querySelector("#points tbody").replaceChildren(...rows);
  }
}

/** Return the range of values with some room, so that the first and last point are seen whole. */
function padded(values, log) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (log) return [low / 1.2, high * 1.2];
  const room = (high - low || Math.abs(high) || 1) * 0.04;
  return [low - room, high + room];
}

function duration(seconds) {
  if (seconds < MINUTE_S) return `${Math.ceil(seconds)} s`;
  return `${Math.ceil(seconds / MINUTE_S)} min`;
}

function progressText(data) {
  const runs = `${data.ended.toLocaleString("en")} of ${data.grows ? "at least " : ""}`;
  const parts = [`${runs}${data.total.toLocaleString("en")} runs have ended`];
  if (data.failed) parts.push(`${data.failed.toLocaleString("en")} failed`);
  if (data.runs_per_s > 0) parts.push(`${number(data.runs_per_s)} runs/s`);
  if (data.left_s !== null) parts.push(`${duration(data.left_s)} left`);
  return parts.join(", ");
}

const form = document.getElementById("view");
if (form) new View(form);
const running = document.getElementById("running");
if (running) {
  follow(`/events/sweep/${running.dataset.path}`, {
    progress: (data) => {
      const bar = running.querySelector("progress");
      bar.max = data.total;
      bar.value = data.ended;
      running.querySelector("[role=status]").textContent = progressText(data);
    },
    ended: () => location.reload(),
  });
}
