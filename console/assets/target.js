// One target: status, charts, servers and earlier changes.

import { at, get, post, newKey, Problem } from "./api.js";
import { propose, ProposalField, undo } from "./propose.js";
import { Chart, CHARTS, drawn, showColumn, strictest } from "./charts.js";
import { el, fill } from "./dom.js";
import { change, flag, latency, latest, number, percent, valueOf, words } from "./format.js";
import { action, barred, figure, notice, pill, side, table, time } from "./parts.js";

const HOURS = [1, 3, 6, 12, 24];
const POINTS = 480;
const TURNED = {
  pause: "Paused: nothing new is started on this target.",
  "pause?maintenance=true": "In maintenance: nothing new is started on this target, and a server that you stop stays stopped.",
  resume: "Resumed.",
};

export function targetPage(context, root, name) {
  let target = null;
  let series = null;
  let hours = Number(sessionStorage.getItem("flettner.hours")) || 6;
  const path = at("targets", name);
  const slot = el("div");
  const head = el("div");
  const actions = el("div", { class: "buttons actions" });
  const figures = el("dl", { class: "figures" });
  const picker = el("fieldset", { class: "picker" }, el("legend", { class: "visually-hidden" }, "Hours shown"),
    HOURS.map((each) => el("label", el("input", { type: "radio", name: "hours", value: each, checked: each === hours, onchange: () => choose(each) }), el("span", `${each} h`))));
  const none = el("p", { class: "empty", hidden: true }, "No history yet: the charts begin two minutes after the daemon has seen load.");
  const grid = el("div", { class: "charts" });
  const more = el("div");
  const charts = CHARTS.map((spec) => [spec, new Chart(spec)]);
  root.append(el("div", { class: "heading" }, head, actions), slot, figures, el("div", { class: "between" }, el("h2", "Last hours"), picker), none, grid, more);

  function choose(each) {
    hours = each;
    sessionStorage.setItem("flettner.hours", each);
    history();
  }

  async function refresh() {
    target = await get(path);
    draw();
  }

  async function history() {
    const wanted = hours;
    const answer = await get(`${path}/series?hours=${hours}&points=${POINTS}`);
    if (wanted !== hours) return;
    series = answer;
    plot();
  }

  function plot() {
    if (!target) return;
    fill(figures, numbers());
    if (!series) return;
    none.hidden = CHARTS.some((spec) => spec.lines.some(([column]) => drawn(series, column)));
    for (const [spec, chart] of charts) {
      const shown = spec.lines.some(([column]) => drawn(series, column));
      if (shown && !chart.node.isConnected) grid.append(chart.node);
      if (!shown) chart.node.remove();
      else showColumn(chart, spec, series, target.slo);
    }
    [...charts].reverse().reduce((next, [, chart]) => {  // in the order of CHARTS, whichever came first
      if (!chart.node.isConnected) return next;
      if (chart.node.nextSibling !== next) grid.insertBefore(chart.node, next);
      return chart.node;
    }, null);
  }

  function draw() {
    if (!target) return;
    fill(head,
      el("p", { class: "crumb" }, el("a", { href: "#/targets" }, "Targets")),
      el("h1", { tabindex: "-1" }, name, " ", pill(target.phase), target.paused ? pill("paused", target.maintenance ? "maintenance" : "paused") : null, el("span", { class: "muted mode" }, `mode ${target.mode}`)),
      target.failover && el("p", { class: "note bad" }, target.failover),
      target.note && target.note !== target.failover ? el("p", { class: "note" }, target.note) : null,
      target.headroom && el("p", { class: "note" }, `By the load of the last week: ${target.headroom.text}.`),
      el("p", { class: "links" },
        target.suggestions.map((id, place) => el("a", { class: "button ask", href: `#/suggestions/${encodeURIComponent(id)}` }, place ? `Also ${id}` : target.mode === "advise" ? "A suggestion to apply by hand" : "A suggestion needs approval")),
        target.approved.map((id) => el("a", { class: "button", href: `#/suggestions/${encodeURIComponent(id)}` }, `${id} is approved, and waits`)),
        target.held.map((id) => el("a", { class: "button", href: `#/suggestions/${encodeURIComponent(id)}` }, `${id} is held, to be committed`)),
        target.rollout && el("a", { href: `#/rollouts/${encodeURIComponent(target.rollout)}` }, "Latest rollout"),
        el("a", { href: `#/model/${encodeURIComponent(name)}` }, "Model and what if"),
        el("a", { href: `#/audit?target=${encodeURIComponent(name)}` }, "Audit of this target")));
    const bar = barred(context);
    const last = lastPromotion();
    fill(actions, action("propose", "Propose…", ask, { reason: bar }),
      last && action("undo", "Undo…", () => takeBack(last), { reason: bar, by: bar && "why-propose" }), target.paused
      ? action("resume", "Resume", () => turn("resume"), { reason: bar, by: bar && "why-propose" })
      : [
        action("pause", "Pause", () => turn("pause"), { reason: bar, by: bar && "why-propose" }),
        action("maintenance", "Maintenance", () => turn("pause?maintenance=true"), { reason: bar, by: bar && "why-propose" }),
      ]);
    fill(more, servers(), findings(), budget(), sources(), outcomes());
    plot();
  }

  async function ask() {
    const field = new ProposalField();
    const refusal = await propose(name, field.node, () => field.changes());
    if (refusal) notice(slot, "bad", refusal);
  }

  /** Of flags: servers that were spared return by an abort. */
  function lastPromotion() {
    return target.outcomes.filter((outcome) => outcome.result === "promoted" && !("servers" in outcome.to)).at(-1);
  }

  async function takeBack(last) {
    const body = el("div",
      el("p", "The last promotion, of ", time(last.at), ", set ", el("code", change(last.before, last.to)), "."),
      el("p", { class: "muted" }, "The values before it are proposed. Nothing changes before an approval."));
    const refusal = await undo(name, body);
    if (refusal) notice(slot, "bad", refusal);
  }

  async function turn(what) {
    try {
      target = await post(`${path}/${what}`, undefined, newKey());
      draw();
      notice(slot, "good", TURNED[what]);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      notice(slot, "bad", error.message);
    }
  }

  function numbers() {
    const { reading, slo } = target;
    const attained = latest(series?.attainment);
    const goal = strictest(slo);
    const p95 = (latencies, objective) => (objective && latencies?.p95 > objective.under_s ? "bad" : "");
    return [
      figure("Goodput", target.goodput_rps === null ? "–" : `${number(target.goodput_rps)}/s`),
      figure("In SLO", percent(attained), goal ? `of ${percent(goal)} promised` : "", goal && attained !== null && attained < goal ? "bad" : ""),
      figure("TTFT p95", latency(reading?.ttft?.p95), slo?.ttft ? `≤ ${latency(slo.ttft.under_s)} for ${percent(slo.ttft.share)}` : "", p95(reading?.ttft, slo?.ttft)),
      figure("ITL p95", latency(reading?.itl?.p95), slo?.itl ? `≤ ${latency(slo.itl.under_s)} for ${percent(slo.itl.share)}` : "", p95(reading?.itl, slo?.itl)),
      figure("Waiting", number(reading?.waiting.mean, 2), reading ? `up to ${number(reading.waiting.high)}` : ""),
      figure("Running", number(reading?.running.mean, 2), reading ? `up to ${number(reading.running.high)}` : ""),
      figure("KV cache", percent(reading?.kv_usage?.mean, 0), reading?.kv_usage ? `up to ${percent(reading.kv_usage.high, 0)}` : ""),
      figure("Preemptions", reading?.preemptions_per_s ? `${number(reading.preemptions_per_s.mean, 2)}/s` : "–"),
      cost(target.cost),
      (reading?.gpus ?? []).map((gpu) => figure(`GPU ${gpu.index}`, percent(gpu.utilization, 0),
        gpu.memory_total_mib ? `${percent(gpu.memory_used_mib / gpu.memory_total_mib, 0)} of ${number(gpu.memory_total_mib / 1024)} GiB${gpu.temperature_c === null ? "" : ` · ${number(gpu.temperature_c)} °C`}` : gpu.name)),
    ];
  }

  /** Of the last five minutes; money in the currency of the config. */
  function cost(now) {
    if (!now) return null;
    return [
      now.per_hour === null ? null : figure("Cost of 1M tokens", number(now.per_million_tokens), `${number(now.per_hour)} an hour for ${number(now.gpus)} GPU${now.gpus === 1 ? "" : "s"}`),
      now.per_hour === null ? null : figure("Cost of 1,000 good requests", number(now.per_thousand_good_requests), "within every objective"),
      now.power_w === null ? null : figure("Tokens per joule", number(now.tokens_per_joule), `at ${number(now.power_w)} W`),
    ];
  }

  function servers() {
    const rows = target.servers.map((server) => [
      [side(server.color), " ", server.name, server.replicas > 1 && el("small", ` ${server.replicas} replicas`), server.failing && el("span", { class: "bad" }, ` ${server.failing}`)],
      server.weight === null ? "–" : `${server.weight} %`,
      server.address || "not up yet",
      server.ours ? "flettner" : "external",
      el("details", { "data-key": `flags-${server.name}` }, el("summary", `${Object.keys(server.setting).length} flags`),
        el("pre", { tabindex: "0", "aria-label": `Flags of ${server.name}` }, Object.entries(server.setting).map(([knob, value]) => flag(knob, value)).filter(Boolean).join("\n") || "none")),
    ]);
    return section("Servers", table("Servers", ["Server", "Traffic", "Address", "Started by", "Setting"], rows, { hidden: true, keys: target.servers.map((server) => server.name) }));
  }

  function findings() {
    const rows = target.findings.map((finding) => [`${finding.rule} ${finding.slug}`.trimEnd(), pill(finding.severity), Object.keys(finding.to).length ? Object.entries(finding.to).map(([knob, value]) => `${knob} ${valueOf(value)}`).join(", ") : "–", finding.why]);
    return rows.length ? section("Flags", table("Findings of lint on the flags", ["Rule", "Severity", "Would set", "Why"], rows, { hidden: true })) : null;
  }

  function budget() {
    const rows = target.budget.map((burn) => [
      burn.window.replace("m", " min").replace("h", " h"), el("span", { class: burn.rate >= 6 ? "bad" : burn.rate > 1 ? "warn" : null }, `${number(burn.rate)} ×`), words(burn.objective), `${number(burn.bad)} of ${number(burn.of)}`,
    ]);
    return rows.length ? section("Error budget", table("Burn rate of the error budget; 1 × is the allowed rate", ["Window", "Burns", "Worst objective", "Bad requests"], rows)) : null;
  }

  function sources() {
    const rows = target.sources.map((source) => [source.source, source.available ? "answers" : el("span", { class: "warn" }, "lost"), time(source.at), source.why]);
    return section("Sources", table("Sources", ["Source", "State", "Since", "Why"], rows, { hidden: true, empty: "Every source has answered since the daemon's start." }));
  }

  function outcomes() {
    const rows = [...target.outcomes].reverse().map((outcome) => [time(outcome.at), pill(outcome.result), Object.keys(outcome.before).length ? change(outcome.before, outcome.to) : Object.entries(outcome.to).map(([knob, value]) => `${knob} ${valueOf(value)}`).join(", "), outcome.why]);
    return section("Earlier changes", table("Earlier changes", ["When", "Result", "Change", "Why"], rows, { hidden: true, empty: "Nothing yet." }));
  }

  return {
    title: name, concerns: (record) => record.target === name, refresh, draw, every_s: 3, slow: history, slow_s: 30,
    close: () => charts.forEach(([, chart]) => chart.close()),
  };
}

export function section(title, ...body) {
  return el("section", { "data-key": title, "aria-label": title }, el("h2", title), body);
}
