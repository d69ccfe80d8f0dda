// The panel "What if": other flags, faster requests or longer prompts, predicted without touching anything.

import { at, post, Problem } from "./api.js";
import { el, fill, say } from "./dom.js";
import { banded, COSTS, flagOf, latency, number, percent } from "./format.js";
import { action, barred, notice, table } from "./parts.js";
import { describe, propose } from "./propose.js";
import { rateChart } from "./rate_chart.js";

const PATIENCE_MS = 90000;  // seconds of CPU, of low priority
const FACTORS = [0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4];
const LOADS = [["rate", "Requests come", "as fast"], ["prompt", "Prompts are", "as long"]];
const FIRST = ["max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold", "gpu_memory_utilization"];
const ROWS = [
  ["attainment", "Requests within the objectives", percent],
  ["goodput_per_s", "Such requests per second", number],
  ["ttft_p50_s", "TTFT, median", latency],
  ["ttft_p90_s", "TTFT, 90 %", latency],
  ["ttft_p99_s", "TTFT, 99 %", latency],
  ["itl_p50_s", "Time between tokens, median request", latency],
  ["itl_p90_s", "Time between tokens, 90 % of requests", latency],
  ["itl_p99_s", "Time between tokens, 99 % of requests", latency],
  ["e2e_p90_s", "Whole request, 90 %", latency],
  ["peak_kv_share", "KV cache, peak", percent],
  ["preemptions_per_request", "Preemptions per request", number],
  ...COSTS,
];

export class WhatIf {
  constructor(context, name) {
    this.context = context;
    this.name = name;
    this.path = `${at("targets", name)}/predictions`;
    this.fields = el("div", { class: "filters" });
    this.button = el("button", { type: "submit", class: "primary" }, "Predict");
    this.problem = el("div");
    this.result = el("div", { class: "predicted" });
    this.form = el("form", { onsubmit: (event) => this.ask(event) }, this.fields, this.button);
    this.node = el("section", { "aria-label": "What if", hidden: true }, el("h2", "What if"),
      el("p", { class: "muted" }, "What other flags or another load would do, by a replay of the recorded requests. Nothing is changed."),
      this.form, this.problem, this.result);
  }

  /** `present`: the modelled flags in force. The fields stay as they are while these do not change. */
  show(present, slo) {
    this.slo = slo;
    const shape = JSON.stringify(present);
    this.node.hidden = !Object.keys(present).length;
    if (shape === this.shape) return;
    this.shape = shape;
    this.present = present;
    const rest = Object.keys(present).filter((knob) => !FIRST.includes(knob));
    this.fields.replaceChildren(
      ...LOADS.map((load) => this.slider(...load)),
      ...FIRST.filter((knob) => knob in present).map((knob) => this.field(knob)),
      el("details", el("summary", `${rest.length} more flags`), el("div", { class: "filters" }, rest.map((knob) => this.field(knob)))));
  }

  slider(name, before, after) {
    const shown = el("output", { for: `what-${name}` }, "×1");
    const text = (place) => `×${FACTORS[place]}`;
    const turn = (event) => {
      shown.textContent = text(event.target.value);
      event.target.setAttribute("aria-valuetext", `${text(event.target.value)} ${after}`);
    };
    return el("div", el("label", { for: `what-${name}` }, `${before} `, shown, ` ${after}`),
      el("input", { type: "range", id: `what-${name}`, name, min: 0, max: FACTORS.length - 1, step: 1, value: FACTORS.indexOf(1), "aria-valuetext": `×1 ${after}`, oninput: turn }));
  }

  field(knob) {
    const present = this.present[knob];
    const id = `what-${knob}`;
    const field = typeof present === "boolean"
      ? el("select", { id, name: knob }, [true, false].map((value) => el("option", { value: String(value), selected: value === present }, String(value))))
      : el("input", { type: "number", id, name: knob, min: 0, step: "any", value: present ?? "", placeholder: "not set" });
    return el("div", el("label", { for: id }, flagOf(knob)), field);
  }

  /** What differs from the flags in force, and the factors of the load. */
  body() {
    const given = new FormData(this.form);
    const to = {};
    for (const [knob, present] of Object.entries(this.present)) {
      const text = given.get(knob) ?? "";
      if (text === String(present ?? "")) continue;
      to[knob] = text === "" ? null : typeof present === "boolean" ? text === "true" : Number(text);
    }
    return { to, ...Object.fromEntries(LOADS.map(([name]) => [name, FACTORS[given.get(name)]])) };
  }

  async ask(event) {
    event.preventDefault();
    if (this.button.disabled) return;
    const body = this.body();
    this.button.disabled = true;
    this.button.textContent = "Predicting…";
    fill(this.problem);
    try {
      this.draw(await post(this.path, body, undefined, PATIENCE_MS), body);
      say("The prediction is below.");
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      notice(this.problem, "bad", error.message);
    }
    this.button.disabled = false;
    this.button.textContent = "Predict";
  }

  async propose(to) {
    const refusal = await propose(this.name, describe(to), () => to);
    if (refusal) notice(this.problem, "bad", refusal);
  }

  draw(answer, body) {
    const changed = Object.keys(body.to).length > 0;
    const rows = ROWS.filter(([name]) => answer.now[name] && answer.then[name])
      .map(([name, title, say_]) => [title, banded(answer.now[name], say_), banded(answer.then[name], say_)]);
    const [now, then] = [answer.capacity, answer.then_capacity];
    if (now && then) {
      const rate = (capacity) => (capacity.rate_rps === null ? "none" : `up to ${number(capacity.rate_rps)}/s`);
      rows.push(["One server carries within the objectives", rate(now), rate(then)], ["Servers for the load", now.servers ?? "–", then.servers ?? "–"]);
    }
    const loads = [[answer.rate_rps, "now"], ...(body.rate === 1 ? [] : [[answer.rate_rps * body.rate, "then"]])];
    const charts = [["ttft", "Time to first token"], ["itl", "Time between tokens"]].map(([name, title]) =>
      rateChart({ title, name, curve: answer.curve, loads, bound: this.slo?.[name]?.under_s, changed }));
    fill(this.result,
      answer.warning && el("p", { class: "note warn" }, `vLLM may refuse this: ${answer.warning}`),
      answer.extrapolation && el("p", { class: "note warn" }, `Less certain: ${answer.extrapolation}`),
      table(`${number(answer.requests)} recorded requests, ${number(answer.rate_rps)} a second for each server; step times from the ${answer.law_source}. In brackets: 80 % of the draws.`,
        ["Number", "Now", "Then"], rows),
      changed && action("propose", "Propose these flags…", () => this.propose(body.to), { reason: barred(this.context) }),
      el("div", { class: "charts wide" }, charts));
  }
}
