// Rollouts: green compared with blue, the evidence, and abort.

import { at, get, post, Problem } from "./api.js";
import { Chart } from "./charts.js";
import { el, fill, svg } from "./dom.js";
import { change, duration, evidence as odds, latency, MOST_EVIDENCE, number, percent, valueOf, words } from "./format.js";
import { Tail } from "./log.js";
import { action, barred, confirm, figure, list, notice, pill, refused, side, table, time } from "./parts.js";
import { section } from "./target.js";

const WORSE = 100;  // mean over the streams at which green is rolled back
const NOT_WORSE = 20;  // of each stream, where no better goodput is proved: the step is passed
const BETTER = 100;  // of goodput: green is better, and no stream needs a proof of its own
const LEAST_EVIDENCE = 0.01;

const RULE = `A step passes when goodput reaches ${BETTER} for “better”, or when every stream reaches ${NOT_WORSE} for “not worse”; a share below blue's only has to show no harm. Green is rolled back when the mean of “worse” reaches ${WORSE}.`;
const scale = (_, low, high) => [Math.min(0.1, low ?? 1), Math.max(1000, high ?? 1)];

export function rolloutsPage(context, root) {
  let all = null;
  const body = el("div");
  root.append(el("h1", { tabindex: "-1" }, "Rollouts"), body);

  async function refresh() {
    all = await list("/v1/rollouts?limit=200", "rollouts");
    draw();
  }

  function draw() {
    if (!all) return;
    const rows = all.map((rollout) => [
      el("a", { href: `#/rollouts/${encodeURIComponent(rollout.id)}` }, rollout.id),
      rollout.target,
      [pill(rollout.outcome), rollout.outcome === "running" && rollout.phase ? [" ", words(rollout.phase)] : null],
      time(rollout.started_at, false),
      lasted(context, rollout),
      [number(rollout.exposed.asked), rollout.bad_exposed ? el("span", { class: "warn" }, ` · ${number(rollout.bad_exposed)} bad`) : null],
      rollout.why || rollout.gain,
    ]);
    fill(body, table("Rollouts, newest first", ["Rollout", "Target", "Outcome", "Started", "Lasted", "Exposed", "Why"], rows, { hidden: true, keys: all.map((rollout) => rollout.id), empty: "None yet." }));
  }

  return { title: "Rollouts", refresh, draw, every_s: 10 };
}

function lasted(context, rollout) {
  const end = rollout.ended_at ? new Date(rollout.ended_at) : context.now();
  return duration((end - new Date(rollout.started_at)) / 1000);
}

export function rolloutPage(context, root, id) {
  let rollout = null;
  let suggestion = null;
  let target = null;
  const path = at("rollouts", id);
  const head = el("div");
  const slot = el("div");
  const actions = el("div", { class: "buttons actions" });
  const now = el("div");
  const compared = el("div");
  const curve = new Chart({ title: "Evidence: green is not worse", unit: odds, log: true, range: scale, height: 170, sync: id });
  const against = new Chart({ title: "Evidence: green is worse", unit: odds, log: true, range: scale, height: 170, sync: id });
  const evidence = el("section", { "aria-label": "Evidence over time", hidden: true }, el("h2", "Evidence over time"),
    el("p", { class: "muted" }, `E-values on a logarithmic scale that ends at ${number(MOST_EVIDENCE)}. ${RULE}`),
    el("div", { class: "charts wide" }, curve.node, against.node));
  const tail = new Tail(id);
  const rest = el("div");
  root.append(el("div", { class: "heading" }, head, actions), slot, now, compared, evidence, tail.node, rest);

  async function refresh() {
    rollout = await get(path);
    [suggestion, target] = await Promise.all([
      suggestion ?? get(at("suggestions", rollout.suggestion)).catch(absent),
      get(at("targets", rollout.target)),
    ]);
    draw();
  }

  function absent(error) {
    if (error instanceof Problem && error.status === 404) return null;
    throw error;
  }

  function draw() {
    if (!rollout || !target) return;
    const running = rollout.outcome === "running";
    fill(head,
      el("p", { class: "crumb" }, el("a", { href: "#/rollouts" }, "Rollouts")),
      el("h1", { tabindex: "-1" }, suggestion ? change(suggestion.from, suggestion.to) : rollout.id, " ", pill(rollout.outcome), running && rollout.phase ? pill(rollout.phase) : null),
      el("p", { class: "links" }, `${rollout.id} on `, el("a", { href: `#/targets/${encodeURIComponent(rollout.target)}` }, rollout.target),
        " · ", el("a", { href: `#/suggestions/${encodeURIComponent(rollout.suggestion)}` }, "its suggestion"), " · started ", time(rollout.started_at), ` · ${running ? "for" : "lasted"} ${lasted(context, rollout)}`),
      rollout.why && el("p", { class: "note" }, rollout.why),
      running && target.note && target.note !== rollout.why ? el("p", { class: "note" }, target.note) : null,
      running && rollout.waits && el("p", { class: "note" }, "This step waits for: ", rollout.waits),
      rollout.gain && !rollout.why.includes(rollout.gain.replace(/^better: /, "")) && el("p", { class: "note good" }, "Better: ", rollout.gain.replace(/^better: /, "")),
      rollout.failover && el("p", { class: "note bad" }, "Not a promotion: ", rollout.failover),
      rollout.parked && el("p", { class: "note warn" }, "Green is suspended without traffic: ", rollout.parked));
    fill(actions, running ? action("abort", "Abort…", abort, { reason: barred(context), tone: "danger" }) : null);
    fill(now, progress(running));
    fill(compared, sides(), judged());
    plot();
    if (over()) tail.node.hidden = true;
    fill(rest, answers(), lostLog());
  }

  function progress(running) {
    const steps = rollout.plan.steps.map((step, place) => {
      const state = !running ? (rollout.outcome === "promoted" || place < rollout.step ? "done" : place === rollout.step ? "stopped" : "ahead")
        : place < rollout.step ? "done" : place === rollout.step && rollout.step_since ? "current" : "ahead";
      const text = { done: "done", current: "now", stopped: "ended here", ahead: "to come" }[state];
      return el("li", { class: state, "aria-current": state === "current" ? "step" : null },
        el("strong", `${step.weight} %`), el("span", `${text}${state === "current" ? ` · ${duration(rollout.valid_s)} of evidence${rollout.valid_s < step.at_least_s ? `, at least ${duration(step.at_least_s)}` : ""}` : ""}`));
    });
    const weights = { blue: 0, green: 0 };
    const replicas = { blue: 0, green: 0 };
    if (running) target.servers.forEach((server) => {
      weights[server.color] += server.weight ?? 0;
      replicas[server.color] += server.replicas;
    });
    const green = running ? weights.green : rollout.outcome === "promoted" ? 100 : 0;
    return section("Progress",
      el("ol", { class: "steps" }, steps),
      running && el("div", { class: "traffic", role: "img", "aria-label": `Traffic: blue ${weights.blue} %, green ${green} %` },
        shareBar("blue", weights.blue), shareBar("green", green)),
      el("dl", { class: "figures" },
        figure("Traffic on green", `${green} %`),
        replicas.blue + replicas.green > 2 ? figure("Replicas", `${replicas.blue} blue, ${replicas.green} green`) : null,
        figure("Exposed requests", number(rollout.exposed.asked), "sent to green, all steps"),
        figure("Bad of them", number(rollout.bad_exposed), rollout.exposed.asked ? percent(rollout.bad_exposed / rollout.exposed.asked, 2) : "", rollout.bad_exposed ? "warn" : ""),
        figure("Lost", number(rollout.lost), rollout.undrained ? `of ${number(rollout.undrained)} open when a server was retired` : "no request was open when a server was retired", rollout.lost ? "bad" : ""),
        rollout.restarts ? figure("Restarts", number(rollout.restarts), "of the daemon", "warn") : null,
        figure("Strategy", rollout.strategy, rollout.outage_s ? `outage ${duration(rollout.outage_s)}` : "")));
  }

  function shareBar(color, weight) {
    const bar = svg("svg", { class: `share ${color}`, viewBox: "0 0 100 1", preserveAspectRatio: "none" }, svg("rect", { width: weight, height: 1 }));
    return el("div", el("span", side(color), ` ${weight} %`), bar);
  }

  function sides() {
    const arms = [rollout.green, rollout.blue, rollout.baseline];
    const row = (name, show) => [name, ...arms.map(show)];
    const bad = (count, arm) => (count ? `${number(count)} (${percent(count / Math.max(arm.asked, 1), 2)})` : "0");
    return section("Green against blue",
      table("This step, and blue before the canary", ["", "Green, this step", "Blue, this step", "Blue, before"], [
        row("Requests", (arm) => number(arm.asked)),
        row("Failed", (arm) => bad(arm.errors, arm)),
        row("First token far too late", (arm) => bad(arm.stalled, arm)),
        row("Gave up", (arm) => bad(arm.gave_up, arm)),
        row("Refused", (arm) => bad(arm.refused, arm)),
        row("TTFT p95", (arm) => latency(arm.ttft_p95_s)),
        row("ITL p95", (arm) => latency(arm.itl_p95_s)),
        row("Whole answer p95", (arm) => latency(arm.e2e_p95_s)),
      ], { kind: "matrix" }),
      el("p", { class: "muted" }, "All requests of the step. The judge below counts those that can be compared: a request that waits in a queue which advances is late, not stalled, once green serves alone."));
  }

  function judged() {
    if (!rollout.judged.length) return section("The judge", el("p", { class: "empty" }, "Nothing is judged yet: green has answered no request of this step."));
    const { goodput } = rollout;
    const high = Math.max(0.01, ...[...rollout.judged, ...(goodput ? [goodput] : [])].flatMap((stream) => [stream.green_interval?.[1] ?? 0, stream.blue_interval?.[1] ?? 0]));
    const proved = Boolean(goodput?.proof);
    const needed = proved || rollout.outcome !== "running" ? "" : ` of ${NOT_WORSE}`;
    const rows = rollout.judged.map((stream) => [
      [words(stream.stream), stream.edge_s ? el("small", ` bad above ${latency(stream.edge_s)}`) : null],
      intervals(stream, high),
      el("span", { class: "even" }, el("span", { class: stream.not_worse >= NOT_WORSE ? "good" : null }, odds(stream.not_worse)), el("small", proved ? " not needed" : needed)),
      el("span", { class: "even" }, el("span", { class: stream.worse >= 10 ? "bad" : null }, odds(stream.worse)), el("small", ` of ${WORSE}`)),
      stream.says,
    ]);
    const better = goodput && [
      table("Goodput: requests that fail or miss an objective", ["Stream", `Bad requests, 0 to ${percent(high)}`, "Better", "In words"], [[
        "goodput", intervals(goodput, high),
        goodput.proof && goodput.better < BETTER ? el("span", { class: "good" }, "proved") : el("span", { class: "even" }, el("span", { class: goodput.better >= BETTER ? "good" : null }, odds(goodput.better)), el("small", ` of ${BETTER}`)),
        goodput.proof ? `Proved: ${goodput.proof}` : goodput.says,
      ]], { keys: ["goodput"] })];
    return section("The judge", el("p", { class: "muted" }, RULE), better,
      table("Share of bad requests with its 95 % interval, and the evidence", ["Stream", `Bad requests, 0 to ${percent(high)}`, "Not worse", "Worse", "In words"], rows, { keys: rollout.judged.map((stream) => stream.stream) }));
  }

  function intervals(stream, high) {
    const line = (color, bad, of, interval) => {
      const text = `${color}: ${number(bad)} of ${number(of)} bad${interval ? `, between ${percent(interval[0], 2)} and ${percent(interval[1], 2)}` : ""}`;
      const x = (share) => Math.min(100, (share / high) * 100);
      const picture = svg("svg", { class: `interval ${color}`, viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": text });
      picture.append(svg("line", { x1: 0, x2: 100, y1: 9.5, y2: 9.5, class: "base" }));
      if (interval) {
        picture.append(svg("line", { x1: x(interval[0]), x2: Math.max(x(interval[1]), x(interval[0]) + 0.8), y1: 5, y2: 5, class: "span" }));
        picture.append(svg("line", { x1: x(of ? bad / of : 0), x2: x(of ? bad / of : 0) + 1, y1: 5, y2: 5, class: "middle" }));
      }
      return el("div", { class: "interval-row" }, el("span", { class: `side ${color}`, "aria-hidden": "true" }, color), picture, el("span", { class: "count" }, `${number(bad)}/${number(of)}`));
    };
    return [line("green", stream.green_bad, stream.green_of, stream.green_interval), line("blue", stream.blue_bad, stream.blue_of, stream.blue_interval)];
  }

  function plot() {
    const points = rollout.over_time;
    evidence.hidden = points.length < 2;
    if (evidence.hidden) return;
    const times = points.map((point) => Date.parse(point.at) / 1000);
    const streams = [...new Set(points.flatMap((point) => Object.keys(point.judged)))];
    const palette = ["--text", "--violet", "--warn", "--muted", "--teal", "--accent", "--green"];  // limits are red
    const shown = (value) => (value === undefined ? null : Math.min(MOST_EVIDENCE, Math.max(LEAST_EVIDENCE, value)));
    const lines = (place) => streams.map((stream, at_) => [points.map((point) => shown(point.judged[stream]?.[place])), words(stream), palette[at_ % palette.length]]);
    const marks = points.filter((point, place) => place && point.weight !== points[place - 1].weight).map((point) => ({ at: Date.parse(point.at) / 1000, name: "next step", color: "--muted" }));
    curve.show(times, lines(1), { bounds: [[NOT_WORSE, "needed"]], marks });
    against.show(times, lines(0), { bounds: [[WORSE, "back at"]], marks });
  }

  function answers() {
    const { quality } = rollout;
    if (!quality) return null;
    const row = (name, green, blue) => [name, green, blue];
    return section("Answers to golden prompts", el("p", { class: quality.ok ? "note good" : "note bad" }, quality.why),
      table("Green against blue, and blue against itself", ["", "Green", "Blue itself"], [
        row("Same, word for word", number(quality.same), number(quality.same_blue)),
        row("Contradicted", number(quality.contradicted), number(quality.contradicted_blue)),
        row("Drift of log-probabilities", number(quality.drift), number(quality.drift_blue)),
        row("Empty, looping, refusing, failed", number(quality.empty + quality.looping + quality.refusing + quality.failed), number(quality.bad_blue)),
      ], { kind: "matrix" }));
  }

  const over = () => Boolean(rollout) && rollout.outcome !== "running";

  async function log() {
    if (!over()) await tail.refresh();
    if (over()) tail.node.hidden = true;  // it ended meanwhile
  }

  function lostLog() {
    if (!rollout.log.length) return null;
    return section("The lost server's last lines", el("pre", { class: "log", tabindex: "0", "aria-label": "Log" }, rollout.log.join("\n")));
  }

  async function abort() {
    const outcome = await confirm({
      title: "Roll this change back?",
      body: el("p", "All traffic returns to blue", suggestion ? `, with ${Object.entries(suggestion.from).map(([knob, value]) => `${knob} ${valueOf(value)}`).join(", ")}` : "", ". An abort wins as long as there is a way back."),
      label: "Reason",
      required: true,
      button: "Abort the rollout",
      tone: "danger",
      send: (reason, key) => post(`${path}/abort`, { reason }, key),
    });
    if (outcome === null) return;
    await refresh().catch(() => {});
    if (outcome instanceof Problem) notice(slot, "bad", refused(outcome));
    else notice(slot, "good", "The rollout is rolled back.");
  }

  return {
    title: "Rollout", refresh, draw, every_s: 2, idle: over, idle_s: 30, slow: log, slow_s: 3,
    concerns: (record) => record.target === rollout?.target,
    close: () => [curve, against].forEach((chart) => chart.close()),
  };
}
