"""A candidate that makes nearly all requests late: which blocks show it, and which explain it otherwise."""

from dataclasses import replace

import pytest

from flettner.agent.domain.blocks import Arm, Block, BlockTrial
from flettner.agent.judge.blocks.verdict import is_harmful, note_result

Seen = tuple[Arm, int]
"""An arm, and the bad ones of twenty requests."""
HARM: tuple[Seen, ...] = (("candidate", 19), ("present", 0), ("candidate", 18))


def add_up(trial: BlockTrial, arm: Arm, bad: int) -> BlockTrial:
    if arm == "candidate":
        return replace(trial, candidate=(trial.candidate[0] + 20, trial.candidate[1] + bad))
    return replace(trial, present=(trial.present[0] + 20, trial.present[1] + bad))


def trial_after(*seen: Seen, trial: BlockTrial | None = None, crowded: bool = False) -> BlockTrial:
    trial = trial or BlockTrial(seed="r-1", usual=0.02)
    for arm, bad in seen:
        trial = note_result(trial, Block(arm=arm, counts=((20, bad),), crowded=crowded))
        trial = add_up(trial, arm, bad)
    return trial


def test_two_bad_blocks_of_the_candidate_around_a_good_one_of_the_present_values_show_harm() -> None:
    assert is_harmful(trial_after(*HARM))
    assert is_harmful(trial_after(("candidate", 20), ("candidate", 20), ("present", 1)))


@pytest.mark.parametrize(
    "seen",
    [
        HARM[:2],  # once may be a pause of the server
        (HARM[0], HARM[2]),  # nothing says that the present values would have been better
        (("candidate", 20), ("present", 12), ("candidate", 20)),  # both are bad
        (("candidate", 20), ("present", 0), ("candidate", 2), ("candidate", 14)),  # not always
        (("present", 20), ("candidate", 20), ("present", 0), ("candidate", 20)),  # nor alone
        (("candidate", 8), ("present", 0), ("candidate", 9)),  # not nearly all
    ],
)
def test_fewer_signs_are_left_to_the_bets(seen: tuple[Seen, ...]) -> None:
    assert not is_harmful(trial_after(*seen))


def test_bad_blocks_in_a_burst_show_nothing() -> None:
    assert not is_harmful(trial_after(*HARM, crowded=True))


def test_where_many_requests_were_bad_before_the_trial_only_the_bets_count() -> None:
    before = BlockTrial(seed="r-1", usual=0.3)
    assert not is_harmful(trial_after(*HARM, trial=before))


def test_few_requests_show_nothing() -> None:
    trial = trial_after(*HARM[:2])
    few = note_result(trial, Block(arm="candidate", counts=((9, 9),)))
    assert few == replace(trial)
