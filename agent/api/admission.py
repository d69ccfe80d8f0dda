"""Refuses what operators ask for while it would fill the audit journal or crowd out other suggestions.

Only what makes new work is refused: proposals and resumptions. Approvals, denials, aborts and pauses are not.
"""

from collections.abc import Mapping
from math import ceil

from flettner.agent.api.operations import Call
from flettner.agent.api.problems import RequestRefusedError
from flettner.agent.domain.state import State
from flettner.agent.domain.upgrade import upgrades_in
from flettner.agent.machine.open_suggestions import MOST, is_from_person
from flettner.vllm_facts.values import Knob, Value

MOST_OWN = MOST - 1
"""Open proposals of one operator on a target: one place is left for a policy or another operator."""


def refuse_over_budget(call: Call, state: State) -> None:
    """Raises RequestRefusedError (429). A repeat of an accepted request is not refused."""
    wait_s = 0.0 if call.accepted else call.daemon.wait_s(call.actor, state.target)
    if wait_s > 0:
        raise _too_many(
            f"The decisions of {call.actor}, or all decisions about {state.target}, wrote more than an hour's"
            f" share of the audit journal. Try again in {ceil(wait_s)} s; approvals, denials, aborts and"
            " pauses are accepted meanwhile.",
            wait_s,
            kind="journal-share-spent",
        )


def refuse_if_full(call: Call) -> None:
    """Raises RequestRefusedError (503) while the journal is full."""
    if call.accepted or not call.daemon.counters().get("audit_full"):
        return
    raise RequestRefusedError(
        503,
        "The audit journal has reached keep_mb with entries younger than keep: proposals are refused, so that"
        " no entry has to be removed. Raise [agent.audit] keep_mb or shorten keep, and restart the daemon.",
        kind="audit-full",
        headers={"Retry-After": "3600"},
    )


def refuse_too_many_open(call: Call, state: State, to: Mapping[Knob, Value]) -> None:
    """Raises RequestRefusedError (429). A proposal takes the place of one that changes the same knob."""
    own = [
        suggestion
        for suggestion in state.suggestions.pending
        if is_from_person(suggestion)
        and suggestion.policy == call.actor
        and not suggestion.proposal.to.keys() & to.keys()
    ]
    if call.accepted or len(own) < MOST_OWN:
        return
    first, names = min(suggestion.expires_at for suggestion in own), [suggestion.id for suggestion in own]
    raise _too_many(
        f"{', '.join(names)} of {call.actor} are open on {state.target}, and an operator may"
        f" have {MOST_OWN}: deny or approve one of them, or wait until {first:%H:%M:%S} UTC.",
        (first - call.daemon.now()).total_seconds(),
        kind="too-many-open",
    )


def refuse_upgrade(call: Call, to: Mapping[Knob, Value]) -> None:
    """Raises RequestRefusedError (403): only an admin proposes or approves an upgrade."""
    named = upgrades_in(to)
    if named and not (call.holder and call.holder.allows("admin")):
        raise RequestRefusedError(
            403,
            f"A change of {', '.join(named)} takes the role admin, both to propose and to approve it;"
            f" {call.actor} has another role.",
            kind="admin-only",
        )


def _too_many(detail: str, wait_s: float, *, kind: str) -> RequestRefusedError:
    return RequestRefusedError(429, detail, kind=kind, headers={"Retry-After": str(max(1, ceil(wait_s)))})
