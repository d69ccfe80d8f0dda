// A latency against the request rate, as SVG, with a table of the same numbers.

import { logTicks } from "./charts.js";
import { el, svg } from "./dom.js";
import { latency, number } from "./format.js";

const WIDTH = 360;
const HEIGHT = 200;
const LEFT = 50;
const RIGHT = 350;
const TOP = 10;
const BOTTOM = 172;
const LINES = [["p50", "low"], ["p90", "middle"], ["p99", "high"]];
const SIDES = ["now", "then"];

/** `name`: ttft or itl. `loads`: [rate, name] of vertical lines. `bound`: what is promised, in seconds. */
export function rateChart({ title, name, curve, loads, bound, changed }) {
  const sides = changed ? SIDES : ["now"];
  const value = (point, side, line) => point[side][`${name}_${line}_s`];
  const band = (point, side) => value(point, side, "p90");
  const shown = curve.filter((point) => sides.every((side) => band(point, side)));
  if (shown.length < 2) return null;
  const seen = shown.flatMap((point) => sides.flatMap((side) => LINES.map(([line]) => value(point, side, line)?.value).filter((seconds) => seconds > 0)));
  const [low, high] = [Math.min(...seen, bound ?? Infinity) / 1.2, Math.max(...seen, bound ?? 0) * 1.2];
  const most = shown.at(-1).rate_rps;
  const x = (rate) => LEFT + ((RIGHT - LEFT) * rate) / most;
  const y = (seconds) => BOTTOM - ((BOTTOM - TOP) * Math.log(Math.max(seconds, low) / low)) / Math.log(high / low);
  const path = (points) => points.map(([rate, seconds], place) => `${place ? "L" : "M"}${x(rate).toFixed(1)} ${y(seconds).toFixed(1)}`).join("");
  const of = (side, line) => shown.filter((point) => value(point, side, line)).map((point) => [point.rate_rps, value(point, side, line).value]);
  const edge = (side, end) => shown.map((point) => [point.rate_rps, band(point, side)[end]]);

  const picture = svg("svg", { class: "rate-chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": summary(title, shown, sides, band) },
    logTicks(low, high).map((at) => [
      svg("line", { class: "grid", x1: LEFT, x2: RIGHT, y1: y(at), y2: y(at) }),
      svg("text", { x: LEFT - 5, y: y(at) + 4, "text-anchor": "end" }, latency(at))]),
    steps(most).map((at) => svg("text", { x: x(at), y: BOTTOM + 14, "text-anchor": "middle" }, number(at))),
    svg("text", { x: RIGHT, y: HEIGHT - 1, "text-anchor": "end" }, "requests/s of one server"),
    loads.filter(([rate]) => rate <= most).map(([rate, side]) => svg("line", { class: `load ${side}`, x1: x(rate), x2: x(rate), y1: TOP, y2: BOTTOM })),
    bound ? svg("line", { class: "bound", x1: LEFT, x2: RIGHT, y1: y(bound), y2: y(bound) }) : null,
    sides.map((side) => [
      svg("path", { class: `band ${side}`, d: `${path(edge(side, "low"))}${path(edge(side, "high").reverse()).replace("M", "L")}Z` }),
      LINES.map(([line, kind]) => svg("path", { class: `line ${side} ${kind}`, d: path(of(side, line)) }))]));
  return el("figure", { class: "chart", "data-key": name },
    el("figcaption", el("strong", title)), picture,
    el("div", { class: "legend" },
      sides.map((side) => el("span", { class: `key ${side === "now" ? "muted" : "accent"}` }, side === "now" ? "flags in force" : "with the changes")),
      el("span", "p50 dashed, p90 solid with its band, p99 dotted"),
      bound ? el("span", { class: "key bound dashed" }, `promised ${latency(bound)}`) : null,
      loads.map(([, side]) => el("span", side === "now" ? "grey upright line: recorded load" : "coloured upright line: load asked for"))),
    el("details", { "data-key": `${name}-numbers` }, el("summary", "Numbers"),
      el("div", { class: "numbers", tabindex: "0", role: "region", "aria-label": `${title}: numbers` }, numbers(title, shown, sides, value))));
}

function summary(title, shown, sides, band) {
  const ends = [shown[0], shown.at(-1)].map((point) =>
    `${number(point.rate_rps)} requests a second: ${sides.map((side) => `${side} ${latency(band(point, side).value)}`).join(", ")}`);
  return `${title}, 90 % of the requests, at ${ends.join("; at ")}`;
}

function numbers(title, shown, sides, value) {
  const columns = sides.flatMap((side) => LINES.map(([line]) => [side, line]));
  const text = (band, line) => (!band ? "–" : line === "p90" ? `${latency(band.value)} (${latency(band.low)} to ${latency(band.high)})` : latency(band.value));
  return el("table",
    el("caption", { class: "visually-hidden" }, title),
    el("thead", el("tr", el("th", { scope: "col" }, "requests/s"), columns.map(([side, line]) => el("th", { scope: "col" }, `${line} ${side}`)))),
    el("tbody", shown.map((point) => el("tr",
      el("th", { scope: "row" }, number(point.rate_rps)),
      columns.map(([side, line]) => el("td", text(value(point, side, line), line)))))));
}

function steps(most) {
  const rough = most / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((size) => size >= rough);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, place) => place * step);
}
