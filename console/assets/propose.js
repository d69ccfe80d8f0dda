// A person's own change: it is checked like any suggestion, and needs an approval.

import { at, post, Problem } from "./api.js";
import { el } from "./dom.js";
import { flag } from "./format.js";
import { confirm, refused } from "./parts.js";

const CONSTANTS = { null: null, true: true, false: false };

/** A field for values such as "max_num_seqs=128 enforce_eager=null". */
export class ProposalField {
  constructor() {
    this.input = el("input", { id: "proposal", type: "text", required: true, spellcheck: "false", autocomplete: "off", placeholder: "max_num_seqs=128", "aria-describedby": "proposal-hint" });
    this.node = el("div",
      el("label", { for: "proposal" }, "Change"), this.input,
      el("p", { class: "muted", id: "proposal-hint" }, "KNOB=VALUE, separated by spaces; null restores vLLM's default. Nothing changes before an approval."));
  }

  /** By canonical name. Raises Problem where the text is no change. */
  changes() {
    return Object.fromEntries(this.input.value.trim().split(/\s+/).map((text) => {
      const [, knob, value] = /^-{0,2}([A-Za-z][\w-]*)=(.+)$/.exec(text) ?? [];
      if (!knob) throw new Problem(400, `“${text}” is not KNOB=VALUE, such as max_num_seqs=128.`);
      const number = Number(value);
      return [knob.replaceAll("-", "_"), Object.hasOwn(CONSTANTS, value) ? CONSTANTS[value] : Number.isNaN(number) ? value : number];
    }));
  }
}

/** Ask for a reason, propose the changes, and open the suggestion. Returns the refusal, or "". */
export function propose(target, body, changes) {
  return ask("Propose a change", body, (reason, key) => post(at("targets", target, "suggestions"), { to: changes(), reason }, key));
}

/** The same with the values from before the last promotion, which the daemon knows. */
export function undo(target, body) {
  return ask("Undo the last promotion", body, (reason, key) => post(at("targets", target, "undo"), { reason }, key));
}

async function ask(title, body, send) {
  const outcome = await confirm({
    title, body, label: "Reason", required: true, button: "Propose", tone: "primary",
    send: async (reason, key) => send(reason, key),
  });
  if (outcome === null) return "";
  if (outcome instanceof Problem) return refused(outcome);
  location.hash = `#/suggestions/${encodeURIComponent(outcome.id)}`;
  return "";
}

export const describe = (to) => el("ul", Object.entries(to).map(([knob, value]) => el("li", el("code", flag(knob, value) || `${knob}: vLLM's default`))));
