// The audit journal with its filters, and its verification as far as a browser can check it.

import { get } from "./api.js";
import { canCheck, canonical, fault, walk } from "./chain.js";
import { el, fill, say } from "./dom.js";
import { moment, number, words } from "./format.js";
import { notice, table } from "./parts.js";

const FIRST = 60;
const MORE = 200;
/** What is no decision, nor its effect: folded until it is asked for. */
const OBSERVED = ["target.observed", "traffic.routed", "prediction.checked", "adapters.read", "server.warmed", "server.drained"];
const TONES = [[/rolled_back|rolling_back|lost|failed|halted|aborted/, "warn"], [/promoted|approved/, "good"], [/made|asked/, "ask"]];

export function auditPage(context, root, _, query) {
  const entries = new Map();  // by number: {record, node}
  let head = 0;
  let oldest = Infinity;
  let newest = 0;
  let busy = false;
  const filters = {
    text: el("input", { type: "search", id: "f-text", value: query.get("text") ?? "", oninput: sift }),
    target: el("select", { id: "f-target", onchange: sift }, el("option", { value: "" }, "all")),
    action: el("select", { id: "f-action", onchange: sift }, el("option", { value: "" }, "all")),
    observed: el("input", { type: "checkbox", id: "f-observed", onchange: sift }),
    actor: el("select", { id: "f-actor", onchange: sift }, el("option", { value: "" }, "all actors"), ["person", "policy", "auto", "daemon"].map((kind) => el("option", { value: kind }, kind))),
  };
  const labelled = (name, text) => el("div", el("label", { for: `f-${name}` }, text), filters[name]);
  const slot = el("div");
  const count = el("p", { class: "muted", role: "status" });
  const timeline = el("ol", { class: "timeline" });
  const older = el("button", { type: "button", id: "older", onclick: () => guarded(() => load(MORE)) }, "Show older");
  const verify = el("button", { type: "button", id: "verify", onclick: () => guarded(check) }, "Verify the chain");
  const all = el("button", { type: "button", id: "export", onclick: () => guarded(() => save(false)) }, "Export all");
  const some = el("button", { type: "button", id: "export-shown", onclick: () => guarded(() => save(true)) }, "Export the shown entries");
  let closed = false;
  root.append(
    el("div", { class: "between" }, el("h1", { tabindex: "-1" }, "Audit"), el("div", { class: "buttons" }, verify, all, some)),
    el("search", { class: "filters" }, labelled("text", "Text"), labelled("target", "Target"), labelled("action", "Action"), labelled("actor", "Who"), labelled("observed", "Observations")),
    slot, count, timeline, older);

  async function refresh() {
    head = Math.max(head, (await get("/v1/me")).head);
    if (!entries.size) await load(FIRST);
    else while (newest < head && !closed) await page(newest, Math.min(MORE, head - newest));
    sift();
  }

  async function load(most) {
    const before = Math.min(oldest, head + 1);
    const after = Math.max(0, before - 1 - most);
    await page(after, before - 1 - after);
    sift();
  }

  async function page(after, limit) {
    const last = after + limit;
    for (let from = after; from < last && !closed;) {
      const { records, next } = await get(`/v1/audit?after=${from}&limit=${last - from}&brief=true`);
      if (!records.length) break;
      add(records);
      sift();  // what arrives is folded at once, not with the last part
      from = next;
    }
    oldest = Math.min(oldest, after + 1);
  }

  function add(records) {
    newest = Math.max(newest, records.at(-1)?.seq ?? 0);
    for (const record of records) if (!entries.has(record.seq)) entries.set(record.seq, { record, node: row(record) });
    const ordered = [...entries.keys()].sort((earlier, later) => later - earlier);
    let place = timeline.firstChild;
    for (const seq of ordered) {  // newest first; what is there already stays where it is
      const { node } = entries.get(seq);
      if (node === place) place = place.nextSibling;
      else timeline.insertBefore(node, place);
    }
    offer(filters.target, records.map((record) => record.target), query.get("target"));
    offer(filters.action, records.map((record) => record.action), query.get("action"));
    head = Math.max(head, newest);
  }

  function offer(select, values, wanted) {
    const offered = new Set([...select.options].map((option) => option.value));
    const options = [...new Set([...values, wanted])].filter((value) => value && !offered.has(value));
    if (!options.length) return;
    const chosen = select.value || wanted || "";
    const sorted = [...offered, ...options].filter(Boolean).sort();
    fill(select, select.options[0].cloneNode(true), sorted.map((value) => el("option", { value }, value)));
    select.value = offered.has(wanted) ? chosen : wanted || chosen;
  }

  function sift() {
    const text = filters.text.value.trim().toLowerCase();
    const narrowed = filters.observed.checked || filters.action.value || text;
    let shown = 0;
    let folded = 0;
    for (const { record, node } of entries.values()) {
      const matches = (!filters.target.value || record.target === filters.target.value)
        && (!filters.action.value || record.action === filters.action.value)
        && (!filters.actor.value || record.actor?.kind === filters.actor.value)
        && (!text || JSON.stringify(record).toLowerCase().includes(text));
      const fold = matches && !narrowed && OBSERVED.includes(record.action);
      node.hidden = !matches || fold;
      folded += fold;
      shown += matches && !fold;
    }
    count.textContent = `${folded ? `${number(folded, 9)} observations are folded. ` : ""}${number(shown, 9)} of the latest ${number(entries.size, 9)} entries; the audit has ${number(head, 9)}.`;
    older.hidden = oldest <= 1;
  }

  function row(record) {
    if (!record.action) return el("li", { class: "foreign" }, el("span", { class: "seq" }, record.seq), " of a target that this token does not see");
    const mark = el("span", { class: "mark", title: "not checked here yet" });
    const body = el("div", { class: "entry" });
    const details = el("details", { ontoggle: () => details.open && !body.childNodes.length && guarded(() => open(record, body)) },
      el("summary", mark, el("span", { class: "seq" }, record.seq), el("time", { datetime: record.ts }, moment(record.ts)),
        el("span", { class: `what ${TONES.find(([pattern]) => pattern.test(record.action))?.[1] ?? ""}` }, words(record.action.replace(".", ": "))),
        el("span", { class: "target" }, record.target), el("span", { class: "actor" }, record.actor?.kind === "person" ? record.actor.id : record.actor?.id ?? ""),
        el("span", { class: "why-line" }, record.why)),
      body);
    return el("li", details);
  }

  async function open({ seq }, body) {
    const { records } = await get(`/v1/audit?after=${Math.max(0, seq - 2)}&limit=2`);
    const record = records.find((entry) => entry.seq === seq);
    const before = records.find((entry) => entry.seq === seq - 1) ?? null;
    const wrong = canCheck() ? await fault(record, before) : null;
    tick(seq, wrong);
    const pairs = { who: `${record.actor.kind} ${record.actor.id}`, why: record.why, rollout: record.op_id, result: record.result, risk: record.risk, epoch: record.epoch, host: record.host };
    fill(body,
      el("p", { class: wrong === null ? "muted" : wrong ? "bad" : "good" }, wrong === null ? "Cannot be checked over plain HTTP." : wrong ? `Verification failed: ${wrong}.` : "Verified: its hash matches its content, and it follows the previous entry."),
      el("dl", { class: "pairs" }, Object.entries(pairs).filter(([, value]) => value !== "" && value !== null).map(([name, value]) => el("div", el("dt", name), el("dd", name === "rollout" ? el("a", { href: `#/rollouts/${encodeURIComponent(value)}` }, value) : value)))),
      record.error && el("pre", { class: "log", tabindex: "0", "aria-label": "Error" }, record.error),
      record.evidence.length ? table("Evidence", ["Metric", "Value", "Unit"], record.evidence.map((item) => [words(item.metric), number(item.value), item.unit])) : null,
      folded("Before and after", { before: record.before, after: record.after }),
      record.effects.length ? folded("Effects", record.effects) : null,
      record.state ? folded("The resulting state", record.state) : null,
      el("p", { class: "digest" }, "hash ", el("code", record.hash), " after ", el("code", record.prev)));
  }

  function folded(title, value) {
    return el("details", el("summary", title), el("pre", { class: "log", tabindex: "0", "aria-label": title }, JSON.stringify(value, null, 2)));
  }

  function tick(seq, wrong) {
    const mark = entries.get(seq)?.node.querySelector(".mark");
    if (!mark || wrong === null) return;
    mark.textContent = wrong ? "✗" : "✓";
    mark.className = `mark ${wrong ? "bad" : "good"}`;
    mark.title = wrong || "verified";
    fill(mark, el("span", { "aria-hidden": "true" }, wrong ? "✗" : "✓"), el("span", { class: "visually-hidden" }, wrong ? "verification failed" : "verified"));
  }

  async function check() {
    if (!canCheck()) throw new Error("The browser checks hashes only over HTTPS or on loopback.");
    let before = null;
    let first = null;
    let checked = 0;
    let bad = null;
    await walk(0, head, async (record) => {
      const wrong = await fault(record, before);
      tick(record.seq, wrong);
      first ??= record.seq;
      if (wrong) bad ??= { seq: record.seq, wrong };
      before = record;
      checked += 1;
      if (checked % 50 === 0) count.textContent = `Checked ${number(checked, 9)} of ${number(head, 9)} entries…`;
    }, () => closed || bad);
    if (closed) return;
    sift();
    if (bad) notice(slot, "bad", `Entry ${bad.seq} failed verification: ${bad.wrong}. Run \`flettner audit verify\` on the daemon's host.`);
    else notice(slot, "good", `Verified: entries ${number(first ?? 0, 9)} to ${number(before?.seq ?? 0, 9)} are intact and form one chain.`, before && el("p", { class: "digest" }, "head ", el("code", before.hash)));
  }

  async function save(shown) {
    const wanted = shown ? new Set([...entries].filter(([, { node }]) => !node.hidden).map(([seq]) => seq)) : null;
    const seqs = wanted ? [...wanted] : [];
    if (wanted && !seqs.length) throw new Error("Nothing is shown.");
    const lines = [];
    await walk(wanted ? Math.min(...seqs) - 1 : 0, wanted ? Math.max(...seqs) : head, (record) => {
      if (!wanted || wanted.has(record.seq)) lines.push(`${canonical(record)}\n`);
      if (lines.length % 200 === 0) count.textContent = `Read ${number(lines.length, 9)} entries…`;
    }, () => closed);
    if (closed) return;
    const url = URL.createObjectURL(new Blob(lines, { type: "application/jsonl" }));
    el("a", { href: url, download: shown ? "audit-part.jsonl" : "audit.jsonl" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
    sift();
    say(`Exported ${lines.length} entries.`);
  }

  async function guarded(work) {
    if (busy) return;
    busy = true;
    verify.disabled = all.disabled = some.disabled = older.disabled = true;
    try {
      await work();
    } catch (error) {
      notice(slot, "bad", error.message);
    } finally {
      busy = false;
      verify.disabled = all.disabled = some.disabled = older.disabled = false;
    }
  }

  return { title: "Audit", refresh, draw: () => {}, every_s: 20, close: () => { closed = true; } };
}
