// Suggestions: list, show, approve and deny. An approval names the digest that was shown.

import { at, get, post, Problem } from "./api.js";
import { Chart, CHARTS, showColumn } from "./charts.js";
import { el, fill } from "./dom.js";
import { banded, change, COSTS, duration, flag, latency, moment, number, percent, startOf, words } from "./format.js";
import { action, barred, confirm, figure, list, notice, pill, refused, table, time } from "./parts.js";
import { section } from "./target.js";

const STRATEGY = {
  hot: "the running servers take the values",
  surge: "an additional server starts",
  replace: "one server after the other gives its place to a new one",
  swap: "the only server gives its place: a planned outage",
};
const CLASS = {
  auto: "reversible, and invisible to users",
  gated: "changes what is accepted, quality or hardware: always needs approval",
  note: "advice only",
};
const GAIN = {
  always: "without a measurable gain it is rolled back",
  if_missed: "where the SLO is missed, it is rolled back without a measurable gain",
  never: "it need not be better",
};
/** What of the charts shows a metric; the first match counts. */
const SEEN = [[/ttft|first/, "ttft"], [/itl|gap/, "itl"], [/kv|cache/, "kv"], [/preempt/, "preemptions"], [/gpu|throttle|memory/, "gpu"], [/wait|queue|running|seqs/, "queue"], [/request|rps|rate|goodput/, "rate"]];

export function suggestionsPage(context, root) {
  let all = null;
  const body = el("div");
  root.append(el("h1", { tabindex: "-1" }, "Suggestions"), body);

  async function refresh() {
    all = await list("/v1/suggestions?limit=200", "suggestions");
    draw();
  }

  function draw() {
    if (!all) return;
    const rows = all.map((suggestion) => [
      el("a", { href: `#/suggestions/${encodeURIComponent(suggestion.id)}` }, change(suggestion.from, suggestion.to)),
      suggestion.target,
      [pill(statusOf(context, suggestion)), suggestion.rank ? ` no. ${suggestion.rank}` : ""],
      suggestion.why,
      time(suggestion.made_at, false),
      suggestion.approved_by && suggestion.status === "open" ? `by ${suggestion.approved_by}, starts ${startOf(suggestion)}` : suggestion.status === "open" ? `expires in ${duration(left(context, suggestion))}` : suggestion.decided_by,
    ]);
    fill(body, table("Suggestions by rank, open suggestions first", ["Change", "Target", "Status", "Why", "Made", "Decided"], rows, {
      hidden: true, keys: all.map((suggestion) => suggestion.id), empty: "None yet. The first suggestion needs about a minute of load.",
    }));
  }

  return { title: "Suggestions", refresh, draw, every_s: 15 };
}

/** What a server is started with apart from its flags. */
const isStart = (knob) => ["image", "command", "gpus"].includes(knob) || knob.startsWith("env.");
const left = (context, suggestion) => (new Date(suggestion.expires_at) - context.now()) / 1000;
const statusOf = (context, suggestion) => (suggestion.status !== "open" ? suggestion.status : suggestion.approved_by ? "scheduled" : left(context, suggestion) <= 0 ? "expired" : suggestion.preflight?.owner ? "held" : "open");

export function suggestionPage(context, root, id) {
  let shown = null;  // the version on screen, which an approval names
  let newer = null;  // what the daemon has now, when that is something else
  let target = null;
  let series = null;
  let sending = false;
  const path = at("suggestions", id);
  const head = el("div");
  const slot = el("div");
  const stale = el("div");
  const decide = el("section", { class: "decide", "aria-label": "Decision" });
  const body = el("div", { class: "reasons" });
  const graphs = el("div", { class: "charts" });
  const charts = new Map();
  const rest = el("div");
  root.append(head, slot, stale, el("div", { class: "split" }, el("div", body, graphs, rest), decide));

  async function refresh() {
    const answer = await get(path);
    if (!shown || sameOffer(shown, answer)) {
      shown = answer;
      newer = null;
    } else {
      newer = answer;
    }
    const [now, hours] = await Promise.all([
      get(at("targets", answer.target)),
      series ?? get(`${at("targets", answer.target)}/series?hours=${hoursSince(answer)}&points=360`),
    ]);
    target = now;
    series = hours;
    draw();
  }

  /** What followed it is shown for ten minutes. */
  async function history() {
    if (shown && context.now() - new Date(shown.made_at) < 15 * 60e3) series = await get(`${at("targets", shown.target)}/series?hours=${hoursSince(shown)}&points=360`);
  }

  /** The chart ends when the suggestion was made: back to two hours before it. */
  function hoursSince(suggestion) {
    return Math.min(24, Math.max(2, Math.ceil((context.now() - new Date(suggestion.made_at)) / 3600e3) + 2));
  }

  function draw() {
    if (!shown || !target) return;
    const status = statusOf(context, shown);
    fill(head,
      el("p", { class: "crumb" }, el("a", { href: "#/suggestions" }, "Suggestions")),
      el("h1", { tabindex: "-1" }, change(shown.from, shown.to), " ", pill(status)),
      el("p", { class: "links" }, "on ", el("a", { href: `#/targets/${encodeURIComponent(shown.target)}` }, shown.target),
        ` · ${shown.policy === shown.rule ? shown.policy : `${shown.policy}, rule ${shown.rule} ${shown.slug}`.trimEnd()} · made `, time(shown.made_at)));
    fill(stale, newer && el("div", { class: "notice warn", role: "alert" },
      el("p", "This suggestion has changed since you opened it", newer.changed && `: ${newer.changed}`, ". Below is the earlier version, which can no longer be approved."),
      el("button", { type: "button", id: "show-new", onclick: showNew }, "Show the present version")));
    fill(body, reasons());
    graph();
    fill(rest, differences(), byHand(status), how(), flags());
    fill(decide, decision(status));
  }

  function showNew() {
    shown = newer;
    newer = null;
    draw();
    head.querySelector("h1").focus();
  }

  function reasons() {
    const seen = shown.evidence.map((evidence) => figure(words(evidence.metric), amount(evidence), [SPECIAL.has(evidence.unit) ? "" : evidence.unit, evidence.window_s ? `over ${duration(evidence.window_s)}` : ""].filter(Boolean).join(", ")));
    return [
      el("p", { class: "why" }, shown.why),
      el("dl", { class: "pairs" },
        pair("Expected", shown.expects), pair("Risk", shown.risks),
        pair("Class", [el("strong", shown.class), `: ${CLASS[shown.class] ?? ""}`, shown.mitigation ? " · answers a problem of now" : ""]),
        pair("Source", shown.source)),
      shown.cost && table("Predicted cost, in brackets: 80 % of the draws", ["Number", "Now", "With the change"],
        COSTS.filter(([name]) => shown.cost.now[name] && shown.cost.then[name]).map(([name, title, say]) => [title, banded(shown.cost.now[name], say), banded(shown.cost.then[name], say)])),
      el("h2", "Evidence"),
      seen.length ? el("dl", { class: "figures" }, seen) : el("p", { class: "empty" }, "Proposed by an operator, without measurements."),
    ];
  }

  function graph() {
    const wanted = new Set(shown.evidence.flatMap((evidence) => SEEN.filter(([pattern]) => pattern.test(evidence.metric)).slice(0, 1).map(([, chart]) => chart)));
    wanted.add("queue");
    wanted.add("ttft");
    const until = new Date(shown.made_at).getTime() / 1000;
    const cut = upTo(series, until - 2 * 3600, until + 600);
    for (const spec of CHARTS.filter((chart) => wanted.has(chart.id))) {
      if (!charts.has(spec.id)) {
        const chart = new Chart({ ...spec, height: 110, sync: id });
        graphs.append(chart.node);
        charts.set(spec.id, chart);
      }
      charts.get(spec.id).node.hidden = !showColumn(charts.get(spec.id), spec, cut, target.slo);
    }
  }

  function how() {
    const { preflight, plan, forecast } = shown;
    const steps = (plan?.steps ?? []).map((step, place) => [
      place === plan.steps.length - 1 && step.weight === 100 ? "100 %, the old server kept warm" : `${step.weight} %`,
      `${number(step.requests)} requests`, `${duration(step.at_least_s)} to ${duration(step.at_most_s)}`,
    ]);
    return section("Rollout plan",
      preflight?.outage_s > 0 && el("p", { class: "notice warn" }, el("strong", "Planned outage: "), `nothing serves for about ${duration(preflight.outage_s)}.`),
      el("dl", { class: "pairs" },
        preflight && pair("Strategy", [el("strong", preflight.strategy), `: ${STRATEGY[preflight.strategy] ?? ""}`, preflight.why && ` (${preflight.why})`]),
        preflight?.start_s ? pair("Start", `about ${duration(preflight.start_s)}`) : null,
        forecast && pair("How long", `${forecast.start ? "with the start " : ""}usually ${duration((forecast.start?.usual_s ?? 0) + forecast.usual_s + forecast.hold_s)}, nine of ten within ${duration((forecast.start?.likely_s ?? 0) + forecast.likely_s + forecast.hold_s)}, at ${number(forecast.rate_rps)} requests a second`),
        forecast?.too_long.length ? pair("Too little traffic", `the step${forecast.too_long.length > 1 ? "s" : ""} at ${forecast.too_long.map((weight) => `${weight} %`).join(", ")} will probably reach the time limit without a proof`) : null,
        plan && pair("Margin", `green must not be worse by ${percent(plan.margin)} of its requests; ${GAIN[shown.gain_needed]}`)),
      steps.length ? table("Steps of the rollout", ["Green's traffic", "At least", "Takes"], steps) : null,
      shown.notes.length ? el("ul", { class: "notes" }, shown.notes.map((note) => el("li", note))) : null);
  }

  /** What to copy where flettner changes nothing. */
  function byHand(status) {
    const text = shown.preflight?.patch || shown.command;
    if (target.mode !== "advise" || status !== "open" || !text) return null;
    const copied = el("span", { class: "muted", role: "status" });
    const copy = async () => {
      await navigator.clipboard.writeText(text);
      copied.textContent = " Copied.";
    };
    return section("Apply it by hand",
      el("p", { class: "muted" }, shown.preflight?.patch ? "The patch of the server's manifest:" : "The command line with the change. Keep your own host, port, API key and environment:"),
      el("pre", { class: "by-hand", tabindex: "0", "aria-label": "To apply by hand" }, text),
      navigator.clipboard && el("button", { type: "button", id: "copy", onclick: copy }, "Copy"), copied);
  }

  /** All that an upgrade changes: image, program and variables, the versions beneath them, and flags. */
  function differences() {
    const versions = Object.entries(shown.preflight?.versions ?? {});
    if (!versions.length && !Object.keys(shown.to).some(isStart)) return null;
    const unset = (knob) => (isStart(knob) ? "unset" : "vLLM's default");
    const rows = [
      ...Object.entries(shown.to).map(([knob, value]) => [knob, shown.from[knob] ?? unset(knob), value ?? unset(knob)].map(String)),
      ...versions.map(([name, [old, now]]) => [name, old || "unknown", now || "unknown"]),
    ];
    return section("What differs", table("What differs", ["", "Now", "With the change"], rows, { hidden: true }));
  }

  /** Every flag of the server; a changed flag twice. */
  function flags() {
    const setting = target.servers.find((server) => server.color === "blue")?.setting ?? {};
    const same = { ...setting };
    Object.keys(shown.to).forEach((knob) => delete same[knob]);
    const lines = [
      ...Object.entries(same).map(([knob, value]) => ["same", flag(knob, value)]),
      ...Object.entries(shown.to).filter(([knob]) => !isStart(knob)).flatMap(([knob, value]) => [["minus", flag(knob, shown.from[knob])], ["plus", flag(knob, value)]]),
    ].filter(([, text]) => text);
    const sign = { same: " ", minus: "−", plus: "+" };
    const spoken = { same: "", minus: "removed: ", plus: "added: " };
    return section("The exact flags",
      el("div", { class: "diff", tabindex: "0", role: "region", "aria-label": "Flags as a diff" }, lines.map(([kind, text]) =>
        el("code", { class: kind }, el("span", { class: "sign", "aria-hidden": "true" }, sign[kind]), spoken[kind] && el("span", { class: "visually-hidden" }, spoken[kind]), text))));
  }

  function decision(status) {
    if (shown.decided_by || !["open", "held", "checking", "scheduled"].includes(status)) return [el("h2", "Decision"), el("p", over(status))];
    const seconds = left(context, shown);
    if (status === "scheduled") return scheduled();
    const common = newer ? "It has changed since you opened it." : sending ? "Being sent." : barred(context);
    const approving = common || (status === "checking" ? "The preflight check still runs." : "")
      || (shown.class === "note" ? "This is advice only." : "")
      || (status === "held" ? `${shown.preflight.owner} writes the manifest: commit the change there.` : "")
      || (target.mode === "advise" ? "The mode is advise: apply it by hand, as shown, or set [agent] mode = \"approve\" and restart." : "")
      || (shown.barred && shown.barred === context.me.principal ? "You proposed it: another operator must approve it." : "")
      || (target.paused ? "The target is paused; resume it first." : "");
    return [
      el("h2", "Decision"),
      el("p", { class: seconds < 300 ? "warn" : null }, "Expires in ", el("strong", duration(seconds)), el("span", { class: "muted" }, ` at ${moment(shown.expires_at, false)}`)),
      el("div", { class: "buttons" },
        action("approve", "Approve…", approve, { reason: approving, tone: "primary" }),
        action("deny", "Deny…", deny, { reason: common, by: common && common === approving ? "why-approve" : "" })),
      shown.barred && el("p", { class: "muted" }, `${shown.barred} proposed it, so another operator must approve it.`),
      status === "held" && shown.preflight.patch && el("pre", { tabindex: "0", "aria-label": "Patch to commit" }, shown.preflight.patch),
      status !== "held" && shown.digest && el("p", { class: "digest" }, "You approve exactly this, by its digest ", el("code", shown.digest)),
    ];
  }

  function scheduled() {
    return [
      el("h2", "Decision"),
      el("p", "Approved by ", el("strong", shown.approved_by), `. It starts ${startOf(shown)}.`),
      target.note && el("p", { class: "muted" }, target.note),
      el("div", { class: "buttons" }, action("deny", "Deny…", deny, { reason: newer ? "It has changed since you opened it." : barred(context) })),
    ];
  }

  function over(status) {
    if (status === "expired") return `It expired at ${moment(shown.expires_at)}. What is still worth doing is suggested again with fresh numbers.`;
    const why = shown.notes.length ? `: ${shown.notes.at(-1)}` : "";
    if (status === "superseded") return `Another suggestion has taken its place, or the servers changed${why}`;
    if (status === "withdrawn") return `Its evidence is gone${why}`;
    if (status === "refused") return `The preflight check refused it${why}`;
    return [`It was ${status}`, shown.decided_by && ` by ${shown.decided_by}`, ".", status === "approved" && target.rollout ? [" ", el("a", { href: `#/rollouts/${encodeURIComponent(target.rollout)}` }, "To its rollout")] : ""];
  }

  async function approve() {
    const offered = shown;
    const outcome = await confirm({
      title: "Approve this change?",
      body: [
        el("p", el("strong", change(offered.from, offered.to)), " on ", offered.target, "."),
        offered.preflight?.outage_s > 0 ? el("p", { class: "notice warn" }, `Nothing serves for about ${duration(offered.preflight.outage_s)}.`) : null,
        el("p", { class: "digest" }, el("code", offered.digest)),
      ],
      label: "Comment for the audit",
      button: "Approve",
      tone: "primary",
      send: (comment, key) => send("approve", { digest: offered.digest, comment }, key),
    });
    await report(outcome, outcome?.approved_by ? `Approved. The rollout starts ${startOf(outcome)}.` : "Approved. The rollout starts.");
  }

  async function deny() {
    const outcome = await confirm({
      title: "Deny this change?",
      body: el("p", el("strong", change(shown.from, shown.to)), " on ", shown.target, ". It is not suggested again for a while."),
      label: "Reason",
      required: true,
      button: "Deny",
      send: (reason, key) => send("deny", { reason }, key),
    });
    await report(outcome, "Denied.");
  }

  const send = (what, body_, key) => post(`${path}/${what}`, body_, key);

  async function report(outcome, good) {
    if (outcome === null) return;
    const failed = outcome instanceof Problem;
    if (!failed) shown = outcome;
    await refresh().catch(() => {});
    if (failed) notice(slot, "bad", refused(outcome));
    else notice(slot, "good", good, target?.rollout && shown.status === "approved" ? el("a", { href: `#/rollouts/${encodeURIComponent(target.rollout)}` }, "To the rollout") : null);
  }

  return {
    title: "Suggestion", refresh, draw, every_s: 5, slow: history, slow_s: 60, concerns: (record) => record.target === shown?.target,
    ticking: true, close: () => charts.forEach((chart) => chart.close()),
  };
}

/** Whether an approval of the shown suggestion would be an approval of the other. */
function sameOffer(shown, other) {
  return !shown.digest || shown.digest === other.digest;
}

function pair(name, ...value) {
  return el("div", { "data-key": name }, el("dt", name), el("dd", value));
}

const SPECIAL = new Set(["s", "ratio", "share", "%", "1/s"]);

function amount({ value, unit }) {
  if (unit === "s") return latency(value);
  if (unit === "ratio" || unit === "share") return percent(value);
  if (unit === "1/s") return `${number(value)}/s`;
  return unit === "%" ? `${number(value)} %` : number(value);
}

/** The part of a series between two Unix times. */
function upTo(series, from, to) {
  const start = Date.parse(series.start) / 1000;
  const first = Math.max(0, Math.ceil((from - start) / series.every_s));
  const past = Math.max(first, Math.floor((to - start) / series.every_s) + 1);
  const columns = Object.fromEntries(Object.entries(series).filter(([name, value]) => Array.isArray(value) && name !== "marks").map(([name, value]) => [name, value.slice(first, past)]));
  return { ...series, ...columns, start: new Date((start + first * series.every_s) * 1000).toISOString() };
}
