// All targets, and the suggestions that need approval.

import { at, get } from "./api.js";
import { strictest } from "./charts.js";
import { el, fill } from "./dom.js";
import { change, duration, latency, latest, number, percent, startOf, words } from "./format.js";
import { list, pill, sparkline, table } from "./parts.js";

const HOURS = 24;
const POINTS = 96;
const LIVE = ["checking", "draining", "launching", "warming", "canary", "trial", "saving", "replacing", "promoting", "rolling_back", "restoring"];

export function targetsPage(context, root) {
  let targets = null;
  let open = [];
  let scheduled = [];
  const series = new Map();
  const urgent = el("section", { "aria-labelledby": "urgent", class: "urgent" });
  const all = el("section", { "aria-label": "All targets" });
  root.append(el("h1", { tabindex: "-1" }, "Targets"), urgent, all);

  async function refresh() {
    const [answer, waiting] = await Promise.all([list("/v1/targets", "targets"), list("/v1/suggestions?status=open", "suggestions")]);
    targets = answer;
    const listed = (name) => waiting.filter((suggestion) => targets.some((target) => target[name].includes(suggestion.id)));
    open = listed("suggestions");
    scheduled = listed("approved");
    draw();
  }

  async function history() {
    const names = (targets ?? await list("/v1/targets", "targets")).map((target) => target.name);
    await Promise.all(names.map(async (name) => series.set(name, await get(`${at("targets", name)}/series?hours=${HOURS}&points=${POINTS}`))));
    if (targets) draw();
  }

  function draw() {
    if (!targets) return;
    fill(urgent, needs());
    fill(all, table("All targets", ["Target", "State", "Goodput", "In SLO", "TTFT p95", "Queue", "KV", "Preempt.", "GPU", "Last 24 h"], targets.map(row), {
      hidden: true, kind: "glance", keys: targets.map((target) => target.name), empty: "This token has access to no target.",
    }));
  }

  function needs() {
    const down = targets.filter((target) => ["halted", "traffic_lost"].includes(target.phase));
    const busy = targets.filter((target) => LIVE.includes(target.phase) && target.rollout);
    const warnings = [...new Set(targets.flatMap((target) => target.warnings))];
    const items = [
      ...warnings.map((warning) => el("li", { class: "bad" }, warning)),
      ...down.map((target) => el("li", { class: "bad" }, link(target.name), target.phase === "halted" && " is halted", ": ", target.note)),
      ...targets.flatMap((target) => target.servers.filter((server) => server.failing).map((server) => el("li", { class: "bad" }, link(target.name), `: ${server.name} ${server.failing}`))),
      ...open.map((suggestion) => el("li", { class: "ask" },
        el("a", { href: `#/suggestions/${encodeURIComponent(suggestion.id)}` }, change(suggestion.from, suggestion.to)), " on ", suggestion.target,
        el("span", { class: "muted" }, ` · ${suggestion.preflight?.owner ? `held: ${suggestion.preflight.owner} writes the manifest, commit the change there` : targets.find((target) => target.name === suggestion.target)?.mode === "advise" ? "to apply by hand" : "needs approval"}, expires in ${duration((new Date(suggestion.expires_at) - context.now()) / 1000)}`))),
      ...scheduled.map((suggestion) => el("li", { class: "busy" },
        el("a", { href: `#/suggestions/${encodeURIComponent(suggestion.id)}` }, change(suggestion.from, suggestion.to)), " on ", suggestion.target,
        el("span", { class: "muted" }, ` · approved by ${suggestion.approved_by}, starts ${startOf(suggestion)}`))),
      ...busy.map((target) => el("li", { class: "busy" },
        el("a", { href: `#/rollouts/${encodeURIComponent(target.rollout)}` }, `${words(target.phase)} on ${target.name}`),
        el("span", { class: "muted" }, target.note && ` · ${target.note}`))),
    ];
    if (!items.length) return el("p", { class: "muted" }, "Nothing needs a decision.");
    return [el("h2", { id: "urgent" }, "Needs a decision, or is in progress"), el("ul", items)];
  }

  function row(target) {
    const { reading, slo } = target;
    const now = series.get(target.name);
    const attained = latest(now?.attainment);
    const goal = strictest(slo);
    const gpu = latest(now?.gpu_utilization);
    const late = slo?.ttft && target.ttft_p95_s > slo.ttft.under_s;
    return [
      link(target.name),
      [pill(target.phase), " ", el("span", { class: "muted" }, target.mode), target.paused ? [" ", pill("paused", "paused")] : null],
      target.goodput_rps === null ? number(latest(now?.goodput_rps)) : [number(target.goodput_rps), el("small", " req/s")],
      el("span", { class: goal && attained !== null && attained < goal ? "bad" : null }, percent(attained)),
      el("span", { class: late ? "bad" : null }, latency(target.ttft_p95_s)),
      reading ? [number(reading.waiting.mean, 2), el("small", " waiting "), number(reading.running.mean, 2), el("small", " running")] : "–",
      percent(reading?.kv_usage?.mean, 0),
      reading?.preemptions_per_s ? `${number(reading.preemptions_per_s.mean, 2)}/s` : "–",
      percent(gpu, 0),
      now ? sparkline(now.goodput_rps, `Goodput of ${target.name} over ${HOURS} hours: ${describeValues(now.goodput_rps)}`) : "",
    ];
  }

  return { title: "Targets", refresh, draw, every_s: 5, slow: history, slow_s: 60 };
}

function link(name) {
  return el("a", { href: `#/targets/${encodeURIComponent(name)}` }, name);
}

function describeValues(values) {
  const numbers = values.filter((value) => value !== null);
  if (!numbers.length) return "no data yet";
  return `from ${number(Math.min(...numbers))} to ${number(Math.max(...numbers))}, now ${number(numbers.at(-1))} requests a second`;
}
