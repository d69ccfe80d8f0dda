"""Reads the states of the journal's version 1: one flat object, where version 2 has parts. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]

STATE = ("target", "phase", "mode", "approval", "epoch", "paused", "note", "until", "knobs", "budget")
KNOWN = ("sightings", "failing", "health", "outcomes", "predictions", "law_drop")
ROLLOUT = ("id", "plan", "started_at", "phase_since", "passed", "waits", "exposed", "bad", "outcome", "why")
CANARY = ("server", "replicas", "step", "step_since", "level", "step_bad", "heard_at", "parked", "gain")
LOSSES = ("quality", "restarts", "log", "hung", "lost")


def migrate_state(old: Json) -> dict[str, Any]:
    """Return the state of a version-1 line as version 2 holds it; `old` stays as it is.

    What an old line lacks gets its default. An ended rollout whose suggestion the state no longer holds is
    left out: it is in the lines before.
    """
    suggestions = [
        _suggestion(suggestion) for suggestion in (old["suggestion"], *old["also_open"]) if suggestion
    ]
    return {
        **_members(old, *STATE, *KNOWN),
        "fleet": {
            "servers": [server for server in (old["blue"], *old["peers"]) if server],
            **_members(old, stopped="vacated", exited="gone", retiring="leaving"),
            **_members(old, retiring_asked="leaving_asked", last_number="servers"),
        },
        "split": _members(old, "route", "planned"),
        "effects": _members(old, "retry_at", "tries", last_number="effects", awaited="awaiting"),
        "suggestions": {
            "checking": next(
                (suggestion for suggestion in suggestions if suggestion["status"] == "checking"), None
            ),
            "open": [suggestion for suggestion in suggestions if suggestion["status"] == "open"],
            "ended": [_suggestion(suggestion) for suggestion in old["ended"]],
            "last_number": old["suggestions"],
        },
        "rollout": _rollout(old, suggestions),
        "traffic": {
            **_members(old, "steady", "calibration"),
            **_members(old, minutes="recent", since="recent_since", until="recent_until"),
        },
    }


def _members(old: Json, *same: str, **renamed: str) -> dict[str, Any]:
    """The members that the line has, as far as they have other names now, by these."""
    names = {**{name: name for name in same}, **renamed}
    return {new: old[name] for new, name in names.items() if name in old}


def _suggestion(old: Json) -> dict[str, Any]:
    """The preflight's result was called prospect."""
    others = {name: value for name, value in old.items() if name != "prospect"}
    return others | _members(old, preflight="prospect")


def _rollout(state: Json, suggestions: Sequence[Json]) -> dict[str, Any] | None:
    old = state["rollout"]
    carried_out = next(
        (suggestion for suggestion in suggestions if old and suggestion["id"] == old["suggestion"]), None
    )
    if carried_out is None:
        return None
    shared = {**_members(old, *ROLLOUT, "ended_at", baseline="record"), "suggestion": carried_out}
    if old["strategy"] == "hot":
        trial = old["blocks"] or {"seed": old["id"]}
        return {**shared, "bad": old["step_bad"], "trial": trial, "kind": "hot"}
    return {
        **shared,
        **_members(old, *CANARY, *LOSSES, hold_passed="held", green_counts="green", blue_counts="blue"),
        "greens": [server for server in (*state["crew"], state["green"]) if server],
        "refilling": state["phase"] == "rolling_back" and state["green"] is None,
        "evidence": _evidence(old["trial"]),
        "kind": "canary",
    }


def _evidence(old: Json) -> dict[str, Any]:
    streams, goodput = old["streams"], old["goodput"]
    others = {name: value for name, value in old.items() if name != "record_s"}
    return {
        **others,
        "baseline_s": old["record_s"],
        "streams": [
            {**stream, "requests": _pair(stream["requests"]), "ticks": _pair(stream["ticks"])}
            for stream in streams
        ],
        "goodput": {
            **_members(goodput, "pending", "counted", "futile_s", "looked"),
            "beside": {"of_blue": _pair(goodput["beside"])},
            "baseline": {"of_green": _pair(goodput["record"])},
            "harm": {"of_green": _pair(goodput["harm"])},
        },
    }


def _pair(old: Json | None) -> dict[str, Any] | None:
    if old is None:
        return None
    shares = {"above": "worse", "below": "good", "log_above": "log_worse", "most_below": "most_good"}
    return _members(old, "starts", "started", control="of", control_bad="bad", **shares)
