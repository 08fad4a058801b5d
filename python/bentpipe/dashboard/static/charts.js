// Charts of lines and bands, with a legend that shows values and hides lines.

const HEIGHT = 240;
const COLOURS = 8;
// Of outages of both directions or the first, and of the second.
const SHADES = ["muted", "c5"];
const SHADE_ALPHA = "4d";

/** Return a colour of the page, which depends on light and dark. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Return a number with four digits. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  const size = Math.abs(value);
  if (size >= 10000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}

/** Return JSON from the server, or fail with the reason that it gives. */
export async function fetchJson(url, signal) {
  const reply = await fetch(url, { signal });
  const data = await reply.json();
  if (!reply.ok) throw new Error(data.error);
  return data;
}

/** Call a function when the page turns light or dark. */
export function onColours(redraw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function extremes(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null || value === undefined) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? [null, null] : [low, high];
}

/**
 * A chart in `place`, with a legend below it.
 *
 * `options`: `unit` of the values; `xUnit`, `xLabels` (names in place of the numbers 0, 1, 2 ...),
 * `steps` (each value holds until the next), `stacked` (lines are parts of bars), `markers`, `onSelect(from, to)` after a drag and
 * `onReset()` after a double-click, `sync` (charts of one name share the pointer).
 *
 * `show(lines, range, outages)` draws lines `{name, x, y, low?, high?, hue, dashed}`; `low` and `high` are
 * the bounds of a band around the line. `outages` `{name, intervals}` are shaded; the legend names
 * them.
 */
export class Chart {
  constructor(place, options) {
    this.place = place;
    this.options = options;
    this.hidden = new Set();
    this.lines = [];
    this.outages = [];
    this.plot = null;
    this.legend = null;
    new ResizeObserver(() => this.resize()).observe(place);
    onColours(() => this.redraw());
  }

  show(lines, range, outages = []) {
    this.lines = lines;
    this.outages = outages.map((each, i) => ({ ...each, shade: SHADES[i % SHADES.length] }));
    this.range = range;
    this.redraw();
  }

  resize() {
    const width = this.place.clientWidth;
    if (this.plot && width > 0 && width !== this.plot.width) {
      this.plot.setSize({ width, height: HEIGHT });
    }
  }

  fail(message) {
    this.plot?.destroy();
    this.plot = null;
    this.place.replaceChildren(element("p", { className: "notice", textContent: message }));
  }

  redraw() {
    const focused = this.legend?.contains(document.activeElement)
      ? [...this.legend.querySelectorAll("button")].indexOf(document.activeElement)
      : -1;
    this.plot?.destroy();
    this.place.replaceChildren();
    const [data, series, bands] = this.columns();
    this.plot = new uPlot(this.settings(series, bands), data, this.place);
    this.place.dataset.points = Math.max(0, ...this.lines.map((line) => line.x.length));
    this.drawLegend();
    if (focused >= 0) this.legend.querySelectorAll("button")[focused]?.focus();
  }

  /** Return the columns for uPlot: all lines at all times of any, and how each is drawn. */
  columns() {
    const tables = [];
    const series = [{}];
    const bands = [];
    this.rows = [];
    const { stacked } = this.options;
    const heights = stacked ? sums(this.lines, this.hidden) : this.lines.map((line) => line.y);
    const order = this.lines.map((_, i) => i);
    // The bar of a part begins at 0: those above it are drawn before.
    if (stacked) order.reverse();
    for (const i of order) {
      const line = this.lines[i];
      const columns = [line.x, heights[i]];
      const show = !this.hidden.has(line.name);
      this.rows[i] = series.length;
      series.push(this.drawn(line, show));
      if (line.low) {
        columns.push(line.low, line.high);
        const fill = `${colour(`c${line.hue % COLOURS}`)}33`;
        // Between names there is nothing that a band could be of: see drawBars.
        if (!this.options.xLabels) bands.push({ series: [series.length + 1, series.length], fill });
        series.push(this.edge(show), this.edge(show));
      }
      tables.push(columns);
    }
    const joined = tables.length ? uPlot.join(tables) : [[0, 1]];
    return [joined, series, bands];
  }

  drawn(line, show) {
    return {
      show,
      label: line.name,
      stroke: colour(`c${line.hue % COLOURS}`),
      width: 1.6,
      dash: line.dashed ? [6, 4] : undefined,
      spanGaps: false,
      fill: this.options.stacked ? colour(`c${line.hue % COLOURS}`) : undefined,
      paths: this.paths(),
      points: { show: Boolean(this.options.markers), size: 7 },
    };
  }

  edge(show) {
    return { show, width: 0, stroke: "transparent", points: { show: false }, paths: this.paths() };
  }

  paths() {
    if (this.options.stacked) return uPlot.paths.bars({ size: [0.7, 80] });
    return this.options.steps ? uPlot.paths.stepped({ align: 1 }) : undefined;
  }

  settings(series, bands) {
    const { unit, xUnit = "s", xLabels, sync, log } = this.options;
    const axis = {
      stroke: colour("muted"),
      grid: { stroke: colour("grid"), width: 1 },
      ticks: { stroke: colour("grid"), width: 1 },
      font: "12px system-ui, sans-serif",
      labelFont: "12px system-ui, sans-serif",
      labelSize: 18,
      labelGap: 0,
    };
    const x = xLabels
      ? { ...axis, splits: xLabels.map((_, i) => i), values: () => xLabels, size: 32, label: xUnit }
      : { ...axis, size: 32, label: sync ? `time [${xUnit}]` : xUnit };
    return {
      width: Math.max(this.place.clientWidth, 200),
      height: HEIGHT,
      legend: { show: false },
      scales: {
        x: { time: false, distr: log ? 3 : 1, range: this.range ? () => this.range : undefined },
        y: { range: (_, low, high) => [Math.min(0, low ?? 0), 1.05 * high || 1] },
      },
      axes: [x, { ...axis, label: unit, size: 60 }],
      series,
      bands,
      cursor: {
        y: false,
        drag: { x: Boolean(this.options.onSelect), y: false, setScale: false },
        sync: sync ? { key: sync } : undefined,
        bind: { dblclick: () => () => this.options.onReset?.() },
      },
      hooks: {
        setCursor: [(plot) => this.showValues(plot)],
        setSelect: [(plot) => this.select(plot)],
        drawClear: [(plot) => this.drawOutages(plot)],
        draw: [(plot) => this.drawBars(plot)],
      },
    };
  }

  /** Shade outages below the lines; one shorter than a pixel stays visible. */
  drawOutages(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const { intervals, shade } of this.outages) {
      ctx.fillStyle = `${colour(shade)}${SHADE_ALPHA}`;
      for (const [start, end] of intervals) {
        const left = plot.valToPos(start, "x", true);
        const width = Math.max(plot.valToPos(end, "x", true) - left, 2 * devicePixelRatio);
        ctx.fillRect(left, bbox.top, width, bbox.height);
      }
    }
    ctx.restore();
  }

  /** Draw the interval of each point as a bar where names on the axis are in no order. */
  drawBars(plot) {
    if (!this.options.xLabels) return;
    const { ctx } = plot;
    ctx.save();
    ctx.lineWidth = 2 * devicePixelRatio;
    for (const line of this.lines) {
      if (!line.low || this.hidden.has(line.name)) continue;
      ctx.strokeStyle = colour(`c${line.hue % COLOURS}`);
      line.x.forEach((at, i) => {
        if (line.low[i] === null) return;
        const left = plot.valToPos(at, "x", true);
        ctx.beginPath();
        ctx.moveTo(left, plot.valToPos(line.low[i], "y", true));
        ctx.lineTo(left, plot.valToPos(line.high[i], "y", true));
        ctx.stroke();
      });
    }
    ctx.restore();
  }

  select(plot) {
    const { left, width } = plot.select;
    if (!this.options.onSelect || width < 5) return;
    const range = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.options.onSelect(...range);
  }

  drawLegend() {
    const heads = ["", "at the pointer", "smallest", "largest"];
    const head = element("tr");
    heads.forEach((text, i) => {
      const cell = element("th", { scope: "col", textContent: text });
      cell.className = ["text", "", "small", ""][i];
      head.append(cell);
    });
    const body = element("tbody");
    this.lines.forEach((line, i) => body.append(this.legendRow(line, i)));
    this.outages.forEach((each) => body.append(outageRow(each)));
    const table = element("table", { className: "legend" }, element("thead", {}, head), body);
    table.setAttribute("aria-label", "lines of the chart");
    this.legend?.remove();
    this.legend = table;
    this.place.after(table);
  }

  legendRow(line, i) {
    const swatch = element("span", { className: line.dashed ? "swatch dashed" : "swatch" });
    swatch.style.borderTopColor = colour(`c${line.hue % COLOURS}`);
    const button = element("button", { type: "button" }, swatch, line.name);
    button.setAttribute("aria-pressed", String(!this.hidden.has(line.name)));
    button.title = "show or hide";
    button.addEventListener("click", () => this.toggle(line.name, i, button));
    const [low, high] = extremes(line.y);
    return element(
      "tr",
      {},
      element("td", { className: "text" }, button),
      element("td", { textContent: "-" }),
      element("td", { className: "small", textContent: number(low) }),
      element("td", { textContent: number(high) }),
    );
  }

  toggle(name, i, button) {
    const show = this.hidden.delete(name);
    if (!show) this.hidden.add(name);
    button.setAttribute("aria-pressed", String(show));
    if (this.options.stacked) {
      this.redraw();
      return;
    }
    const first = this.rows[i];
    const count = this.lines[i].low ? 3 : 1;
    for (let each = first; each < first + count; each += 1) this.plot.setSeries(each, { show });
  }

  /** Show the value of each line at the pointer: that of the last point before it. */
  showValues(plot) {
    const { left } = plot.cursor;
    const cells = this.legend?.querySelectorAll("tbody td:nth-child(2)") ?? [];
    // A bar is around its number.
    const shift = this.options.stacked ? 0.5 : 0;
    const at = left < 0 ? null : plot.posToVal(left, "x") + shift;
    cells.forEach((cell, i) => {
      const line = this.lines[i];
      if (line) cell.textContent = at === null ? "-" : number(valueAt(line, at));
    });
  }
}

function outageRow({ name, shade }) {
  const swatch = element("span", { className: "shade" });
  swatch.style.background = `${colour(shade)}${SHADE_ALPHA}`;
  const cell = element("td", { className: "text", colSpan: 4 }, swatch, name);
  return element("tr", { className: "outage" }, cell);
}

/** Return the sums of the lines up to each one, without hidden ones. */
function sums(lines, hidden) {
  let below = lines[0]?.x.map(() => 0) ?? [];
  return lines.map((line) => {
    if (!hidden.has(line.name)) below = below.map((height, i) => height + line.y[i]);
    return below;
  });
}

function valueAt(line, at) {
  let low = 0;
  let high = line.x.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (line.x[middle] <= at) low = middle + 1;
    else high = middle;
  }
  return low === 0 ? null : line.y[low - 1];
}
