// The performance model of one target: its law, what became of its predictions, and "What if".

import { at, get } from "./api.js";
import { el, fill } from "./dom.js";
import { latency, number, percent, valueOf } from "./format.js";
import { figure, table, time } from "./parts.js";
import { section } from "./target.js";
import { WhatIf } from "./what_if.js";

const COEFFICIENTS = [
  ["step_us", "each step"],
  ["token_us", "each token above the knee"],
  ["sequence_us", "each sequence"],
  ["kv_read_us", "each token of KV cache that decoding reads"],
  ["attention_us", "each pair of prompt token and context token"],
];
const CHECKED = [
  ["attainment", "Requests within the objectives", percent],
  ["ttft_p90_s", "TTFT, 90 %", latency],
  ["itl_p90_s", "Time between tokens, 90 % of requests", latency],
];
const signed = (share) => `${share >= 0 ? "+" : "−"}${percent(Math.abs(share), 0)}`;

export function modelPage(context, root, name) {
  let model = null;
  let target = null;
  const head = el("div");
  const law = el("div");
  const record = el("div");
  const panel = new WhatIf(context, name);
  root.append(head, panel.node, law, record);

  async function refresh() {
    [model, target] = await Promise.all([get(`${at("targets", name)}/model`), get(at("targets", name))]);
    draw();
  }

  function draw() {
    if (!model) return;
    fill(head,
      el("p", { class: "crumb" }, el("a", { href: `#/targets/${encodeURIComponent(name)}` }, name)),
      el("h1", { tabindex: "-1" }, "Performance model"),
      model.why_no_law && el("p", { class: "note warn" }, `No law of step time is in force: ${model.why_no_law}.`));
    panel.show(model.law ? model.modelled : {}, target.slo);
    fill(law, lawOf());
    fill(record, recordOf());
  }

  function lawOf() {
    const { check, load } = model;
    const size = (errors) => (errors.length ? percent(errors.reduce((sum, error) => sum + Math.abs(error), 0) / errors.length, 0) : "–");
    const rows = model.law ? COEFFICIENTS.map(([key, title]) => [title, model.law.coefficients[key]]).filter(([, coefficient]) => coefficient.value || coefficient.high)
      .map(([title, coefficient]) => [title, `${number(coefficient.value)} µs`, `${number(coefficient.low)} to ${number(coefficient.high)} µs`]) : [];
    return section("Law of step time",
      el("dl", { class: "figures" },
        figure("Law", model.law ? "in force" : "none", model.law_source && `${number(model.windows)} windows, ${model.law_source}`, model.law ? "" : "warn"),
        model.law && figure("Knee", number(model.law.knee), "tokens of a step"),
        figure("Error between tokens", size(check.itl_errors), `below ${percent(check.itl_limit, 0)}, ${check.itl_errors.length} of ${check.needed} windows`),
        figure("Error of TTFT", size(check.ttft_errors), `below ${percent(check.ttft_limit, 0)}, 90 % of the requests`),
        load && figure("Load", `${number(load.rate_rps)}/s`, `${number(load.requests)} requests of one server`),
        load && figure("Prompts", number(load.prompt_tokens), `tokens, ${percent(load.cached_share, 0)} cached`),
        load && figure("Answers", number(load.output_tokens), "tokens"),
        model.kv_tokens && figure("KV cache", number(model.kv_tokens), "tokens")),
      rows.length ? table("Fitted times of a step", ["Time of", "Law", "80 % of laws"], rows, { hidden: true }) : null);
  }

  function recordOf() {
    const { coverage, bias, rollouts, dropped, dropped_at, bands_hold } = model.record;
    const checked = CHECKED.filter(([key]) => key in coverage).map(([key, title]) => [
      title, el("span", { class: coverage[key] < bands_hold - 0.2 ? "warn" : null }, percent(coverage[key], 0)),
      key.endsWith("_s") ? signed(bias[key]) : `${number(100 * bias[key], 2)} points`]);
    const rows = [...rollouts].reverse().map((rollout) => [
      el("a", { href: `#/rollouts/${encodeURIComponent(rollout.rollout)}` }, rollout.rollout), time(rollout.at),
      Object.entries(rollout.to).map(([knob, value]) => `${knob} ${valueOf(value)}`).join(", "),
      ...CHECKED.map(([key, , say]) => beside(rollout, key, say))]);
    return section("Predictions of rollouts",
      dropped_at && el("p", { class: "note warn" }, "A law was dropped ", time(dropped_at), `: ${dropped}.`),
      checked.length ? table(`Of ${rollouts.length}; bands shall hold ${percent(bands_hold, 0)} of what is measured`, ["Number", "Inside the band", "Mean error"], checked) : null,
      table("Predicted, and measured while the new servers were held", ["Rollout", "When", "Change", ...CHECKED.map(([, title]) => title)], rows, { empty: "None was compared yet." }));
  }

  function beside(rollout, key, say) {
    const band = rollout.predicted[key];
    if (!band || rollout.measured[key] === undefined) return "–";
    return [`${say(band.low)} to ${say(band.high)}, `, el("strong", say(rollout.measured[key]))];
  }

  return { title: `Model of ${name}`, concerns: (entry) => entry.target === name && entry.action === "prediction.checked", refresh, draw, every_s: 30 };
}
