"""The values that undo the last promotion."""

from dataclasses import replace
from datetime import timedelta

import pytest

from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.model import SERVERS, Outcome, OutcomeResult, Server
from flettner.agent.domain.state import State
from flettner.agent.machine.undoing import undo_last
from flettner.vllm_facts.values import Setting
from tests.support.machine_stories import NOON


def outcome(
    to: Setting, before: Setting | None = None, result: OutcomeResult = "promoted", minutes: int = 0
) -> Outcome:
    return Outcome(at=NOON + timedelta(minutes=minutes), result=result, to=to, before=before or {})


def state(setting: Setting, *outcomes: Outcome, start: Setting | None = None) -> State:
    server = Server(name="chat-r1", address="127.0.0.1:8101", setting=setting, start=start or {})
    return State(target="chat", fleet=Fleet(servers=(server,)), outcomes=outcomes)


def test_the_last_promotion_is_undone_whatever_failed_since() -> None:
    first = outcome({"max_num_seqs": 8}, {"max_num_seqs": 4})
    last = outcome(
        {"max_num_seqs": 16, "enforce_eager": None}, {"max_num_seqs": 8, "enforce_eager": True}, minutes=5
    )
    failed = outcome({"max_num_seqs": 32}, {"max_num_seqs": 16}, "rolled_back", minutes=9)

    undo = undo_last(state({"max_num_seqs": 16}, first, last, failed))

    assert undo.to == {"max_num_seqs": 8, "enforce_eager": True}
    assert undo.promoted_at == last.at
    assert not undo.why


def test_a_flag_that_was_not_given_before_gets_vllms_default_again() -> None:
    undo = undo_last(state({"max_num_seqs": 8}, outcome({"max_num_seqs": 8}, {"max_num_seqs": None})))

    assert undo.to == {"max_num_seqs": None}


def test_undoing_an_undo_brings_the_newer_values_again() -> None:
    last = outcome({"max_num_seqs": 8}, {"max_num_seqs": 4})
    undone = outcome({"max_num_seqs": 4}, {"max_num_seqs": 8}, minutes=9)

    assert undo_last(state({"max_num_seqs": 4}, last, undone)).to == {"max_num_seqs": 8}


@pytest.mark.parametrize(
    ("setting", "outcomes", "why"),
    [
        ({}, (), "no promotion is remembered"),
        ({}, (outcome({"max_num_seqs": 8}, result="no_gain"),), "no promotion is remembered"),
        ({}, (outcome({SERVERS: 1}, {SERVERS: 2}),), "no promotion is remembered"),
        (
            {"max_num_seqs": 9},
            (outcome({"max_num_seqs": 8}, {"max_num_seqs": 4}),),
            "max_num_seqs was changed since the promotion at 2030-01-01 12:00 UTC",
        ),
        ({"enforce_eager": 1}, (outcome({"enforce_eager": True}),), "enforce_eager was changed since"),
    ],
    ids=["nothing", "no promotion", "fewer servers", "changed by hand", "another type"],
)
def test_there_is_no_way_back(setting: Setting, outcomes: tuple[Outcome, ...], why: str) -> None:
    undo = undo_last(state(setting, *outcomes))

    assert undo.to == {}
    assert why in undo.why


def test_a_variable_that_took_a_flags_place_in_an_older_release_is_left() -> None:
    """Nobody asked for it, so that `[targets.upgrades]` need not allow it."""
    to: Setting = {"command": "/old", "attention_backend": None, "env.VLLM_ATTENTION_BACKEND": "FLASHINFER"}
    before: Setting = {"command": "/new", "attention_backend": "FLASHINFER"}
    start: Setting = {"command": "/old", "env.VLLM_ATTENTION_BACKEND": "FLASHINFER"}

    assert undo_last(state({}, outcome(to, before), start=start)).to == before


def test_nothing_is_undone_while_no_server_runs() -> None:
    halted = replace(state({}, outcome({"max_num_seqs": 8})), fleet=Fleet())

    assert undo_last(halted).why == "no server runs that could be changed"


def test_the_engine_chooses_the_gpus_and_clients_keep_the_models_name() -> None:
    last = outcome(
        {"model": "org/b", "served_model_name": "org/a", "image": "vllm:2", "gpus": "0,1"},
        {"model": "org/a", "served_model_name": None, "image": "vllm:1", "gpus": "0"},
    )
    now = state(
        {"model": "org/b", "served_model_name": "org/a"}, last, start={"image": "vllm:2", "gpus": "2,3"}
    )

    assert undo_last(now).to == {"model": "org/a", "image": "vllm:1"}
