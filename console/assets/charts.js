// Charts of a target's hours: uPlot, with a table of the same numbers for readers who cannot see them.

import { el, fill } from "./dom.js";
import { latency, latest, moment, number, percent, words } from "./format.js";

const GREY = "--muted";
const charts = new Set();
const colorOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const rate = (value) => (value === null || value === undefined ? "–" : `${number(value)}/s`);

/** What can be shown. `bound(slo)`: a line that is promised. */
export const CHARTS = [
  { id: "rate", title: "Requests", unit: rate, lines: [["requests_rps", "all", GREY], ["goodput_rps", "within the SLO", "--accent"]] },
  { id: "attainment", title: "SLO attainment", unit: (v) => percent(v, 2), range: share, lines: [["attainment", "within every objective", "--accent"]], bound: (slo) => strictest(slo) },
  { id: "ttft", title: "Time to first token, p95", unit: latency, log: true, lines: [["ttft_p95_s", "p95", "--accent"]], bound: (slo) => slo?.ttft?.under_s },
  { id: "itl", title: "Between tokens, p95", unit: latency, log: true, lines: [["itl_p95_s", "p95", "--accent"]], bound: (slo) => slo?.itl?.under_s },
  { id: "queue", title: "Sequences", unit: (v) => number(v), lines: [["running", "running", GREY], ["waiting", "waiting", "--warn"]] },
  { id: "kv", title: "KV cache in use", unit: (v) => percent(v, 0), range: whole, lines: [["kv_usage", "used", "--accent"]] },
  { id: "preemptions", title: "Preemptions", unit: rate, lines: [["preemptions_per_s", "preempted", "--warn"]] },
  { id: "gpu", title: "GPU", unit: (v) => percent(v, 0), range: whole, lines: [["gpu_utilization", "busy", "--accent"], ["gpu_memory", "memory", GREY]] },
  { id: "tokens", title: "Generated tokens", unit: rate, lines: [["generated_per_s", "of all servers", "--accent"]] },
  { id: "power", title: "Power of the GPUs", unit: (v) => `${number(v)} W`, lines: [["power_w", "drawn", "--accent"]] },
];

export function strictest(slo) {
  const shares = [slo?.ttft?.share, slo?.itl?.share, slo?.e2e?.share].filter((value) => value !== undefined);
  return shares.length ? Math.min(...shares) : undefined;
}

function whole() {
  return [0, 1];
}

function share(_, low) {
  return [Math.max(0, Math.min(0.9, Math.floor((low ?? 1) * 20) / 20)), 1];
}

function fromZero(_, low, high) {
  return [Math.min(0, low ?? 0), high ? high * 1.1 : 1];
}

const SPLITS = [1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720].map((minutes) => minutes * 60);

/** Of the axis of values: room for its longest label, such as "over 10,000". */
const widthOf = (_, labels) => Math.max(54, 14 + 6.5 * Math.max(0, ...(labels ?? []).map((label) => label.length)));

/** Lines over time in a figure. `lines`: [values, name, color variable]; `bounds`: [value, name]. */
export class Chart {
  constructor({ title, unit, log = false, range = log ? decades : fromZero, height = 130, sync = "day" }) {
    Object.assign(this, { title, unit, range, log, height, sync });
    this.canvas = el("div", { class: "canvas", "aria-hidden": "true" });
    this.legend = el("div", { class: "legend" });
    this.now = el("span", { class: "latest" });
    this.body = el("div", { class: "numbers", tabindex: "0", role: "region", "aria-label": `${title}: numbers` });
    this.details = el("details", { ontoggle: () => this.tabulate() }, el("summary", "Numbers"), this.body);
    this.node = el("figure", { class: "chart" },
      el("figcaption", el("strong", title), this.now), this.canvas, this.legend, this.details);
    this.watch = new ResizeObserver(() => this.resize());
    this.watch.observe(this.canvas);
    charts.add(this);
  }

  /** `times`: Unix seconds. */
  show(times, lines, { bounds = [], marks = [] } = {}) {
    this.data = { times, lines, bounds, marks };
    this.point(null);
    fill(this.legend, lines.map(([, name, color], place) => key(name, color, place > 0 && lines.length > 1)), bounds.map(([value, name]) => key(`${name} ${this.unit(value)}`, "--bound", true)), legendOf(marks, times));
    const shape = JSON.stringify([lines.map((line) => line.slice(1)), bounds, marks]);
    if (!this.plot || shape !== this.shape) this.draw(shape);
    else this.plot.setData(this.columns());
    this.tabulate();
  }

  columns() {
    const { times, lines, bounds } = this.data;
    const clean = (values) => (this.log ? values.map((value) => (value > 0 ? value : null)) : values);
    return [times, ...lines.map(([values]) => clean(values)), ...bounds.map(([value]) => times.map(() => value))];
  }

  draw(shape = this.shape) {
    this.plot?.destroy();
    this.shape = shape;
    const { lines, bounds } = this.data;
    const axis = { stroke: colorOf("--muted"), grid: { stroke: colorOf("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const options = {
      width: Math.max(this.canvas.clientWidth, 120),
      height: this.height,
      padding: [8, 20, 0, 0],  // half of the last label of the axis of time
      legend: { show: false },
      cursor: { sync: { key: this.sync }, y: false, points: { size: 6 }, drag: { x: false, y: false } },
      scales: { x: { time: true }, y: { range: this.range, ...(this.log ? { distr: 3 } : {}) } },
      axes: [
        { ...axis, size: 28, gap: 8, incrs: SPLITS, values: (_, splits, __, ___, step) => splits.map((at) => clock(at, step)) },
        { ...axis, size: widthOf, gap: 4, space: 30, ...(this.log ? { splits: (_, __, low, high) => logTicks(low, high), filter: (_, splits) => splits } : {}), values: (_, splits) => splits.map((value) => (value === null ? "" : this.unit(value))) },
      ],
      series: [
        {},
        ...lines.map(([, label, color], place) => ({ label, stroke: colorOf(color), width: 1.5, dash: place && lines.length > 1 ? [5, 3] : [], points: { show: this.lonely(place) } })),
        ...bounds.map(([, label]) => ({ label, stroke: colorOf("--bound"), width: 1, dash: [2, 3], points: { show: false } })),
      ],
      hooks: { draw: [(plot) => this.mark(plot)], setCursor: [(plot) => this.point(plot.cursor.idx)] },
    };
    this.plot = new uPlot(options, this.columns(), this.canvas);
  }

  /** A point with no neighbour would not be seen. */
  lonely(place) {
    return this.data.lines[place][0].filter((value) => value !== null).length < 3;
  }

  mark(plot) {
    const { ctx: pen, bbox: box } = plot;
    const from = plot.scales.x.min;
    const to = plot.scales.x.max;
    for (const { at, color, name } of this.data.marks) {
      if (at < from || at > to) continue;
      const x = plot.valToPos(at, "x", true);
      pen.save();
      pen.strokeStyle = pen.fillStyle = colorOf(color);
      pen.lineWidth = devicePixelRatio;
      pen.setLineDash(DASHED.includes(name) ? [3 * devicePixelRatio, 3 * devicePixelRatio] : []);
      pen.beginPath();
      pen.moveTo(x, box.top);
      pen.lineTo(x, box.top + box.height);
      pen.stroke();
      pen.restore();
    }
  }

  point(place) {
    const { times, lines } = this.data;
    const now = place === null || place === undefined;
    const values = lines.map(([column, name]) => {
      const value = now ? latest(column) : column[place];
      return `${lines.length > 1 ? `${name} ` : ""}${this.unit(value ?? null)}`;
    });
    this.now.textContent = `${now ? "" : `${moment(new Date(times[place] * 1000).toISOString(), false)}  `}${values.join(" · ")}`;
  }

  /** At most 48 rows, only while they are looked at. */
  tabulate() {
    if (!this.details.open || !this.data) return;
    const { times, lines } = this.data;
    const step = Math.max(1, Math.ceil(times.length / 48));
    const places = times.map((_, place) => place).filter((place) => (times.length - 1 - place) % step === 0);
    fill(this.body, el("table",
      el("caption", { class: "visually-hidden" }, this.title),
      el("thead", el("tr", el("th", { scope: "col" }, "time"), lines.map(([, name]) => el("th", { scope: "col" }, name)))),
      el("tbody", places.map((place) => el("tr",
        el("th", { scope: "row" }, moment(new Date(times[place] * 1000).toISOString(), false)),
        lines.map(([values]) => el("td", this.unit(values[place] ?? null))))))));
  }

  resize() {
    const width = this.canvas.clientWidth;
    if (this.plot && width && Math.abs(width - this.plot.width) > 1) this.plot.setSize({ width, height: this.height });
  }

  close() {
    this.watch.disconnect();
    this.plot?.destroy();
    charts.delete(this);
  }
}

function key(name, color, dashed) {
  return el("span", { class: `key ${color.slice(2)} ${dashed ? "dashed" : ""}` }, name);
}

function clock(at, step) {
  const when = new Date(at * 1000);
  if (step >= 86400) return `${when.getMonth() + 1}-${when.getDate()}`;
  return `${String(when.getHours()).padStart(2, "0")}:${String(when.getMinutes()).padStart(2, "0")}`;
}

function decades(_, low, high) {
  return [10 ** Math.floor(Math.log10(low ?? 0.1)), 10 ** Math.ceil(Math.log10((high ?? 1) * 1.01))];
}

/** Ticks of a logarithmic axis: 1, 2 and 5 of each decade where there are few, else at most seven decades. */
export function logTicks(low, high) {
  const span = Math.log10(high / low);
  const of = span > 2.5 ? [1] : [1, 2, 5];
  const step = Math.ceil(span / 6);
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += Math.max(1, step)) {
    ticks.push(...of.map((digit) => digit * 10 ** power).filter((at) => at >= low * 0.999 && at <= high * 1.001));
  }
  return ticks;
}

const MARKS = { started: "--blue", promoted: "--green", rolled_back: "--warn" };
const DASHED = ["started", "next step"];

/** What the upright lines within these times are. */
function legendOf(marks, times) {
  const seen = marks.filter(({ at }) => at >= times[0] && at <= times.at(-1));
  return [...new Map(seen.map(({ name, color }) => [name, color]))].map(([name, color]) =>
    key(`upright line: ${name === "started" ? "rollout started" : words(name)}`, color, DASHED.includes(name)));
}

/** The columns of /series as times and marks. */
export function axisOf(series) {
  const start = Date.parse(series.start) / 1000;
  const length = series.running.length;
  const times = Array.from({ length }, (_, place) => start + place * series.every_s);
  const marks = series.marks.map(({ at, what }) => ({ at: Date.parse(at) / 1000, name: what, color: MARKS[what] }));
  return { times, marks };
}

/** One point is no line yet. */
export const drawn = (series, column) => series[column].filter((value) => value !== null).length > 1;

/** Put the target's numbers into a chart of CHARTS. False: there are none. */
export function showColumn(chart, spec, series, slo) {
  const lines = spec.lines.filter(([column]) => drawn(series, column));
  if (!lines.length) return false;
  const { times, marks } = axisOf(series);
  const bound = spec.bound?.(slo);
  chart.show(times, lines.map(([column, name, color]) => [series[column], name, color]), {
    bounds: bound === undefined || bound === null ? [] : [[bound, "promised"]],
    marks,
  });
  return true;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.data && chart.draw()));
