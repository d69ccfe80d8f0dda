// Numbers, times and flags as people read them.

export const NONE = "–";

export function number(value, digits = 3) {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 10 ** (digits - 1)) return Math.round(value).toLocaleString("en-US");
  return value.toLocaleString("en-US", { maximumSignificantDigits: digits });
}

export const MOST_EVIDENCE = 10000;

/** An e-value; how far it is above any threshold says nothing to a reader. */
export function evidence(value) {
  return value >= MOST_EVIDENCE ? `over ${number(MOST_EVIDENCE)}` : number(value);
}

/** The last value that there is: the newest minute may be incomplete. */
export function latest(values) {
  return values?.findLast((value) => value !== null) ?? null;
}

export function percent(share, digits = 1) {
  if (share === null || share === undefined) return NONE;
  const value = share * 100;
  if (value > 99 && value < 100) return `${Math.floor(value * 100) / 100} %`;  // 99.996 is not 100
  return `${Number(value.toFixed(digits))} %`;
}

/** Numbers of a prediction: name, title, and how it is shown. */
export const COSTS = [
  ["cost_per_million_tokens", "Cost of a million tokens", number],
  ["cost_per_thousand_good_requests", "Cost of 1,000 requests within the objectives", number],
  ["tokens_per_joule", "Tokens per joule", number],
];

/** A predicted number with its band. */
export const banded = (value, say) => (value ? `${say(value.value)} (${say(value.low)} to ${say(value.high)})` : NONE);

/** A latency in seconds. */
export function latency(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 1) return `${number(seconds * 1000)} ms`;
  if (seconds < 100) return `${number(seconds)} s`;
  return seconds < 600 ? `${number(seconds / 60, 2)} min` : duration(seconds);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  const left = Math.max(0, Math.round(seconds));
  if (left < 90) return `${left} s`;
  if (left < 90 * 60) return `${Math.round(left / 60)} min`;
  if (left < 36 * 3600) return `${Number((left / 3600).toFixed(1))} h`;
  return `${Math.round(left / 86400)} days`;
}

const two = (value) => String(value).padStart(2, "0");
const day = (at) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;

/** Local time; with the date unless it is today. */
export function moment(text, seconds = true) {
  if (!text) return NONE;
  const at = new Date(text);
  const time = `${two(at.getHours())}:${two(at.getMinutes())}${seconds ? `:${two(at.getSeconds())}` : ""}`;
  return day(at) === day(new Date()) ? time : `${day(at)} ${time}`;
}

export function ago(text, now) {
  return `${duration((now - new Date(text)) / 1000)} ago`;
}

const SHORT = { kv: "KV", ttft: "TTFT", itl: "ITL", gpu: "GPU", slo: "SLO", e2e: "whole answer" };

export function words(name) {
  return String(name).split("_").map((word) => SHORT[word] ?? word).join(" ");
}

export function flagOf(knob) {
  return `--${knob.replaceAll("_", "-")}`;
}

export function valueOf(value) {
  return value === null || value === undefined ? "vLLM's default" : String(value);
}

/** One flag as it stands on vLLM's command line; empty when it is not given. */
export function flag(knob, value) {
  if (value === null || value === undefined) return "";
  if (value === true) return flagOf(knob);
  if (value === false) return `--no-${knob.replaceAll("_", "-")}`;
  return `${flagOf(knob)} ${value}`;
}

/** "max_num_seqs 64 → 256", one for each knob. */
export function change(from, to) {
  return Object.entries(to).map(([knob, value]) => `${knob} ${valueOf(from[knob])} → ${valueOf(value)}`).join(", ");
}

/** When an approved suggestion starts. */
export const startOf = (suggestion) => (suggestion.after ? `once ${suggestion.after} is promoted` : "when the windows open");
