"""Targets, suggestions and rollouts, as the API's documents have them, as text."""

from collections.abc import Mapping, Sequence
from typing import Any

from flettner.agent.domain.amounts import describe_amount
from flettner.tools.terminal.capabilities import RED, terminal_width
from flettner.tools.terminal.cell_width import clip, wrap_sentence
from flettner.tools.terminal.tables import format_sentence, format_table
from flettner.tools.terminal.values import (
    COST_TITLES,
    escape_text,
    format_amount,
    format_latency,
    format_prediction,
    format_time,
    format_value,
)
from flettner.vllm_facts.values import is_start

Json = Mapping[str, Any]
_BY_HAND = "is to apply by hand"
_APPROVED = "is approved, and waits for its turn or for the windows to open"
_HELD = "is held: commit its change where the manifest is kept"


def format_change(suggestion: Json) -> str:
    return ", ".join(
        f"{escape_text(knob)} {_format_side(knob, suggestion['from'].get(knob))} -> {_format_side(knob, new)}"
        for knob, new in suggestion["to"].items()
    )


def _format_phase(target: Json) -> str:
    phase = str(target["phase"]).replace("_", " ")
    return f"{phase} ({'maintenance' if target['maintenance'] else 'paused'})" if target["paused"] else phase


def format_targets(targets: Sequence[Json]) -> str:
    if not targets:
        return "no targets\n"
    rows = [
        (
            target["name"],
            _format_phase(target),
            target["mode"],
            "-" if target["goodput_rps"] is None else f"{target['goodput_rps']:.1f}/s",
            format_latency(target["ttft_p95_s"]),
            ", ".join(map(_format_server, target["servers"])) or "-",
        )
        for target in targets
    ]
    text = format_table(("TARGET", "PHASE", "MODE", "GOODPUT", "TTFT P95", "SERVERS"), rows)
    return text + format_notes(targets)


def format_notes(targets: Sequence[Json]) -> str:
    """Format the text below a table of targets: warnings, notes, open suggestions and lost sources."""
    warnings = dict.fromkeys(warning for target in targets for warning in target.get("warnings", ()))
    text = "".join(format_sentence(escape_text(warning), RED) for warning in warnings)
    for target in targets:
        name = escape_text(target["name"])
        if target["failover"] and target["failover"] != target["note"]:
            text += format_sentence(f"{name}: {escape_text(target['failover'])}", RED)
        for server in target["servers"]:
            if server["failing"] and not target["failover"]:
                text += format_sentence(
                    f"{name}: {escape_text(server['name'])} {escape_text(server['failing'])}", RED
                )
        if target["note"]:
            text += format_sentence(f"{name}: {escape_text(target['note'])}")
        if target["waits"]:
            text += format_sentence(f"{name}: waits for: {escape_text(target['waits'])}")
        text += _format_spending(target)
        text += _format_open_suggestions(target)
        text += _format_findings(target)
        for source in target["sources"]:
            if not source["available"] and source["source"] != "traffic":  # of which the note has the reason
                text += format_sentence(
                    f"{name}: {escape_text(source['source'])} is lost: {escape_text(source['why'])}",
                    RED,
                )
    return f"\n{text}" if text else ""


def _format_spending(target: Json) -> str:
    lines = [
        *([format_cost(cost)] if (cost := target.get("cost")) else []),
        *([headroom["text"]] if (headroom := target.get("headroom")) else []),
        *([switching] if (switching := target.get("switching")) else []),
    ]
    return "".join(format_sentence(escape_text(f"{target['name']}: {line}")) for line in lines)


def format_cost(cost: Json) -> str:
    """`1 GPU, 470 W; 0.222 for a million tokens, ...`, of what is known."""
    gpus = f"{cost['gpus']} GPU{'s' if cost['gpus'] != 1 else ''}"
    power = "" if cost["power_w"] is None else f", {cost['power_w']:.0f} W"
    parts = [
        f"{format_amount(cost[key])} {what}"
        for key, what in (
            ("per_million_tokens", "for a million tokens"),
            ("per_thousand_good_requests", "for 1,000 requests within the objectives"),
            ("tokens_per_joule", "tokens per joule"),
        )
        if cost[key] is not None
    ]
    return "; ".join((f"{gpus}{power}", *([", ".join(parts)] if parts else [])))


def _format_predicted_cost(cost: Json) -> list[str]:
    """A line for each number: now and with the change."""
    return [
        f"{title}: {_format_band(key, cost['now'][key])} -> {_format_band(key, cost['then'][key])}"
        for key, title in COST_TITLES
        if key in cost["now"] and key in cost["then"]
    ]


def _format_band(key: str, band: Mapping[str, float]) -> str:
    value, low, high = (format_prediction(key, band[part]) for part in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def _format_open_suggestions(target: Json) -> str:
    name = escape_text(target["name"])
    lines = [
        f"{suggestion} {_BY_HAND}: `flettner suggestions {suggestion} --command` prints the new command line"
        if target["mode"] == "advise"
        else f"{suggestion} needs approval: `flettner approve {suggestion}`"
        for suggestion in map(escape_text, target["suggestions"])
    ]
    lines += [
        f"{suggestion} {_APPROVED}: `flettner deny {suggestion}` takes the approval back"
        for suggestion in map(escape_text, target.get("approved", ()))
    ]
    lines += [
        f"{suggestion} {_HELD}: `flettner suggestions {suggestion} --patch`"
        for suggestion in map(escape_text, target["held"])
    ]
    return "".join(format_sentence(f"{name}: {line}") for line in lines)


def _format_findings(target: Json) -> str:
    """Format the findings of lint in the flags in force, without remarks."""
    findings = (finding for finding in target.get("findings", ()) if finding["severity"] != "info")
    lines = (f"{target['name']}: flags, rule {_name_rule(finding)}: {finding['why']}" for finding in findings)
    return "".join(format_sentence(escape_text(line)) for line in lines)


def _name_rule(document: Json) -> str:
    """`Q1 queue-cap-too-low`, of a suggestion or a finding."""
    return f"{document['rule']} {document['slug']}".rstrip()


def format_target_line(target: Json) -> str:
    """Return the state of a target, without measurements, in one line."""
    wants = _BY_HAND if target["mode"] == "advise" else "needs approval"
    pending = [f"{suggestion} {wants}" for suggestion in target["suggestions"]]
    pending += [f"{suggestion} {_APPROVED}" for suggestion in target.get("approved", ())]
    pending += [f"{suggestion} {_HELD}" for suggestion in target["held"]]
    parts = [
        _format_phase(target),
        *map(_format_server, target["servers"]),
        *pending,
        target["note"],
        *target.get("warnings", ()),
    ]
    return f"{escape_text(target['name'])}: {escape_text(', '.join(filter(None, parts)))}"


def format_rollouts(rollouts: Sequence[Json]) -> str:
    """Format a row for each rollout, and the reasons below, clipped to a line each if they are several."""
    if not rollouts:
        return "no rollouts\n"
    rows = [
        (
            rollout["id"],
            rollout["target"],
            (rollout["phase"] or rollout["outcome"]).replace("_", " "),
            _format_step(rollout),
            rollout["exposed"]["asked"],
            rollout["bad_exposed"],
            rollout["exposed"]["errors"],
            rollout["exposed"]["stalled"],
            rollout["lost"],
            format_time(rollout["started_at"]),
        )
        for rollout in rollouts
    ]
    whys = (
        (rollout["id"], rollout["failover"] or rollout["parked"] or rollout["why"] or _format_waits(rollout))
        for rollout in rollouts
    )
    reasons = [f"{escape_text(name)}: {escape_text(why)}" for name, why in whys if why]
    width = terminal_width()
    if len(rollouts) > 1 and width is not None:
        reasons = [clip(reason, width) for reason in reasons]
    text = format_table(
        ("ID", "TARGET", "STATE", "STEP", "EXPOSED", "BAD", "FAILED", "STALLED", "LOST", "STARTED"), rows
    )
    return text + ("\n" if reasons else "") + "".join(map(format_sentence, reasons))


def format_rollout_line(rollout: Json, *, counts: bool = False) -> str:
    """Return a rollout in one line; `counts` adds the requests that the new server received."""
    outcome = rollout["outcome"].replace("_", " ")
    parts = (
        [outcome]
        if rollout["ended_at"]
        else [f"{outcome}: {rollout['phase']}", f"step {_format_step(rollout)}"]
    )
    if counts:
        exposed = rollout["exposed"]
        kinds = f"{exposed['errors']} failed, {exposed['stalled']} stalled"
        parts += [f"{exposed['asked']} requests exposed, {rollout['bad_exposed']} bad: {kinds}"]
    parts += [text for text in (rollout["failover"], rollout["parked"], rollout["why"]) if text]
    return escape_text(f"{rollout['id']} {', '.join(parts)}")


def _format_waits(rollout: Json) -> str:
    return f"waits for: {rollout['waits']}" if rollout["waits"] else ""


def _format_step(rollout: Json) -> str:
    """`2 of 4 (10 %)`."""
    steps = rollout["plan"]["steps"]
    at = min(rollout["step"], len(steps) - 1)
    return f"{at + 1} of {len(steps)} ({steps[at]['weight']} %)"


def _format_server(server: Json) -> str:
    share = "" if server["weight"] is None else f" {server['weight']} %"
    replicas = f" ({server['replicas']} replicas)" if server.get("replicas", 1) > 1 else ""
    return f"{server['name']}{replicas} {server['color']}{share}"


def format_suggestions(suggestions: Sequence[Json]) -> str:
    if not suggestions:
        return "no suggestions\n"
    rows = [
        (
            suggestion["id"],
            suggestion["target"],
            _find_status(suggestion),
            suggestion["rank"] or "-",
            suggestion["class"],
            format_change(suggestion),
            suggestion["why"],
        )
        for suggestion in suggestions
    ]
    return format_table(("ID", "TARGET", "STATUS", "RANK", "CLASS", "CHANGE", "WHY"), rows)


def _format_differences(suggestion: Json) -> list[tuple[str, str]]:
    """All that differs, a line each; the digest of an image, and what is beneath it, included."""
    versions = (suggestion["preflight"] or {}).get("versions") or {}
    if len(suggestion["to"]) + len(versions) == 1:
        return [("change", format_change(suggestion))]
    before = suggestion["from"]
    lines = [
        f"{escape_text(knob)}: {_format_side(knob, before.get(knob))} -> {_format_side(knob, new)}"
        for knob, new in suggestion["to"].items()
    ]
    lines += [
        escape_text(f"{name}: {old or 'unknown'} -> {new or 'unknown'}")
        for name, (old, new) in versions.items()
    ]
    return [("" if at else "change", line) for at, line in enumerate(lines)]


def _format_side(knob: str, value: object) -> str:
    """A variable without a value is unset, and of a flag vLLM has a default."""
    return "unset" if value is None and is_start(knob) else format_value(value)


def format_suggestion(suggestion: Json) -> str:
    """Format everything that an operator reviews before an approval."""
    lines = [
        *_format_differences(suggestion),
        ("target", escape_text(suggestion["target"])),
        (
            "class",
            escape_text(f"{suggestion['class']}  (rule {_name_rule(suggestion)}, by {suggestion['policy']})"),
        ),
        ("why", escape_text(suggestion["why"])),
        ("expects", escape_text(suggestion["expects"])),
        ("risks", escape_text(suggestion["risks"])),
        ("source", escape_text(suggestion["source"])),
        *(("evidence", _format_evidence(evidence)) for evidence in suggestion["evidence"]),
        *(
            ("cost", line)
            for line in (_format_predicted_cost(suggestion["cost"]) if suggestion["cost"] else ())
        ),
        *(
            [("outage", f"planned, about {find_outage_s(suggestion):.0f} s")]
            if find_outage_s(suggestion)
            else []
        ),
        *(("note", escape_text(note)) for note in suggestion["notes"]),
        *(
            [("changed", f"{format_time(suggestion['refreshed_at'])}: {escape_text(suggestion['changed'])}")]
            if suggestion["changed"]
            else []
        ),
        *(
            [("approval", f"by another operator than {escape_text(suggestion['barred'])}")]
            if suggestion["barred"]
            else []
        ),
        *(
            [
                (
                    "approved",
                    f"by {escape_text(suggestion['approved_by'])}; starts {describe_start(suggestion)}",
                )
            ]
            if is_approved(suggestion)
            else [("expires", format_time(suggestion["expires_at"]))]
        ),
        ("status", escape_text(_find_status(suggestion))),
    ]
    wrapped_lines = (
        line
        for label, text in lines
        for line in wrap_sentence(f"  {label:9}{text}", terminal_width(), " " * 11)
    )
    shown = "".join(f"{line}\n" for line in (escape_text(suggestion["id"]), *wrapped_lines))
    digest = escape_text(suggestion["digest"]) or "none yet"  # not wrapped, so that it can be copied
    return f"{shown}  digest   {digest}\n"


def _find_status(suggestion: Json) -> str:
    if is_approved(suggestion):
        return "approved, waits"
    return "held" if is_held(suggestion) else str(suggestion["status"])


def is_approved(suggestion: Json) -> bool:
    """Return whether it is approved, and waits for its turn or for the windows to open."""
    return suggestion["status"] == "open" and bool(suggestion.get("approved_by"))


def is_held(suggestion: Json) -> bool:
    """Return whether it is open, but to be committed where the server's manifest is kept."""
    return suggestion["status"] == "open" and bool((suggestion["preflight"] or {}).get("owner"))


def describe_start(suggestion: Json) -> str:
    """Return when an approved suggestion starts that waits."""
    ahead = suggestion.get("after")
    return f"once {escape_text(ahead)} is promoted" if ahead else "when the windows open"


def find_outage_s(suggestion: Json) -> float:
    """Return the duration of the planned outage; 0 if there is none or it is not known yet."""
    preflight = suggestion["preflight"]
    return float(preflight["outage_s"]) if preflight else 0.0


def _format_evidence(evidence: Json) -> str:
    amount = describe_amount(evidence["value"], evidence["unit"])
    return escape_text(f"{evidence['metric']} {amount} over {describe_amount(evidence['window_s'], 's')}")
