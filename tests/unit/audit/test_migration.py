"""A journal of version 1: one state of each phase, recorded with the release before, and what it did next.

`tests/support/recorded/journal_v1.jsonl.gz` has a target for each situation, named for it, and
`journal_v1_goes_on.json` how that release continued it after a restart, in the same simulated world.
"""

import gzip
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from flettner.agent.audit.chain import verify
from flettner.agent.audit.history import History
from flettner.agent.audit.journal import Journal
from flettner.agent.audit.migration import migrate_state
from flettner.agent.audit.records import DAEMON, FLAT_STATE, VERSION, JournalEntry, parse_record
from flettner.agent.domain.rollout import HotChange
from flettner.agent.domain.state import Phase, State
from tests.support.machine_stories import NOON, World

RECORDED = Path(__file__).parents[2] / "support" / "recorded"
LINES = gzip.decompress((RECORDED / "journal_v1.jsonl.gz").read_bytes())
GOES_ON: dict[str, dict[str, Any]] = json.loads((RECORDED / "journal_v1_goes_on.json").read_text())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(LINES)
    return path


@pytest.fixture
def states(path: Path) -> dict[str, State]:
    journal = Journal.open(path, now=lambda: NOON)
    journal.close()
    return journal.states()


def test_its_chain_is_verified_and_each_state_is_recovered(path: Path, states: dict[str, State]) -> None:
    report = verify(path)

    assert (report.ok, report.entries) == (True, len(GOES_ON))
    assert states.keys() == GOES_ON.keys()
    assert {state.phase for state in states.values()} == {*Phase} - {
        Phase.SAVING
    }  # it was recorded before that phase
    assert all(name.startswith(state.phase.value) for name, state in states.items() if name in [*Phase])


def test_new_entries_continue_it(path: Path) -> None:
    journal = Journal.open(path, now=lambda: NOON)
    state = journal.states()["canary"]
    journal.append(
        JournalEntry(at=NOON, actor=DAEMON, action="target.observed", target="canary", state=state)
    )
    journal.close()

    versions = [parse_record(line)["v"] for line in path.read_bytes().splitlines()]

    assert versions == [FLAT_STATE] * len(GOES_ON) + [VERSION]
    assert verify(path).ok
    assert Journal.open(path, now=lambda: NOON).states()["canary"] == state


def test_the_evidence_of_a_canary_is_kept(states: dict[str, State]) -> None:
    canary = states["canary"].canary
    errors = canary.evidence.streams[0]

    assert (canary.green.name, canary.replicas) == ("chat-r1", {"chat-r0": 1})
    assert (canary.evidence.baseline_s, canary.baseline.total, canary.green_counts.total) == (3.0, 40, 250)
    assert (errors.name, errors.counted.control, errors.counted.green) == ("errors", 230, 230)
    assert errors.requests.log_above == pytest.approx(-0.28752)
    assert errors.requests.most_below == pytest.approx(0.46504)
    assert errors.requests.control == pytest.approx(266.224, abs=1e-3)


def test_each_rollout_holds_its_suggestion(states: dict[str, State]) -> None:
    rollouts = [state.rollout for state in states.values() if state.rollout is not None]

    assert {rollout.suggestion.status for rollout in rollouts} == {"approved"}
    assert all(rollout.suggestion.proposal.to == {"max_num_seqs": 16} for rollout in rollouts)
    assert states["draining"].canary.suggestion.preflight.strategy == "replace"
    assert states["draining_the_only_server"].canary.suggestion.preflight.outage_s == 40.0


def test_the_servers_of_both_settings_are_kept(states: dict[str, State]) -> None:
    between = states["rolling_back_slot_by_slot"].canary
    promoted, failing = states["promoting_last_split"], states["canary_with_a_failover"]

    assert (between.refilling, len(between.greens), between.newest) == (True, 2, None)
    assert promoted.greens == ()
    assert [server.name for server in promoted.fleet.servers] == ["chat-r1"]
    assert failing.split.planned is not None
    assert failing.failing.keys() == {"vllm0"}
    assert [effect.server.name for effect in states["retiring_beside"].fleet.retiring] == ["chat-r9"]


def test_a_trial_and_its_blocks_are_kept(states: dict[str, State]) -> None:
    trial = states["trial"].hot_change.trial

    assert (trial.results, trial.present, trial.candidate) == (3, (250, 0), (100, 0))
    assert isinstance(states["observing_after_a_trial"].rollout, HotChange)


def test_open_suggestions_keep_their_order(states: dict[str, State]) -> None:
    suggestions = states["proposed"].suggestions
    checked = states["checking"].suggestions.checking

    assert [suggestion.id for suggestion in suggestions.open] == ["chat-s1", "chat-s2"]
    assert checked is not None
    assert checked.status == "checking"


def test_the_history_reads_it(path: Path) -> None:
    history = History.of(Journal.open(path, now=lambda: NOON))

    assert {suggestion.status for suggestion in history.suggestions()} >= {"approved"}
    assert history.rollouts()


def test_an_ended_rollout_without_its_suggestion_is_left_out() -> None:
    record = next(line for line in map(parse_record, LINES.splitlines()) if line["target"] == "cooldown")
    old = record["state"]
    assert old is not None
    later = {**old, "phase": "observing", "suggestion": {**old["suggestion"], "id": "chat-s2"}}

    assert migrate_state(old)["rollout"]["suggestion"]["id"] == "chat-s1"
    assert migrate_state(later)["rollout"] is None


@pytest.mark.parametrize("name", GOES_ON)
def test_each_target_goes_on_as_with_the_release_before(states: dict[str, State], name: str) -> None:
    state = states[name]
    record = next(line for line in map(parse_record, LINES.splitlines()) if line["target"] == name)
    world = World(
        state=state,
        waiting=0,
        running={s.name: s for s in state.reachable if s.name not in state.fleet.exited},
        stopped={s.name: s for s in state.fleet.servers if s.name in state.fleet.stopped},
        weights=dict(state.split.weights),
        at=datetime.fromisoformat(record["ts"]),
        epoch=state.epoch,
    )

    world.start().tick(400)

    assert {
        "phase": world.state.phase.value,
        "outcomes": [outcome.result for outcome in world.state.outcomes],
        "servers": {server: setting.get("max_num_seqs") for server, setting in world.settings().items()},
        "weights": {server: weight for server, weight in world.weights.items() if weight},
    } == GOES_ON[name]
