"""Speculative decoding in the simulator: a flat acceptance, and a gain that depends on the load."""

import json

import pytest

from flettner.simulator.drafts import Drafts, read_drafts
from flettner.simulator.flags import InvalidFlagError, parse
from flettner.simulator.hardware import PRESETS
from flettner.simulator.kv_cache import KvCache
from flettner.simulator.replay import Run, replay
from flettner.simulator.scheduler import Scheduler, SchedulerLimits, SimulatedRequest
from flettner.simulator.server import build_server
from flettner.simulator.step_time import StepTime
from flettner.simulator.text import draws

FIVE = json.dumps({"method": "eagle3", "model": "head", "num_speculative_tokens": 5})


def decode(requests: int, drafts: Drafts | None) -> Run:
    """Requests that come at once, with short prompts and 200 tokens of answer."""
    law = StepTime(hardware=PRESETS["4090-8b"], draft_cost=drafts.cost if drafts else 0.0)
    scheduler = Scheduler(SchedulerLimits(max_num_seqs=256), KvCache(20_000), drafts=drafts)
    made = [SimulatedRequest(name=str(number), prompt=16, wanted=200) for number in range(requests)]
    return replay(made, scheduler, law.seconds)


def drafts(*, tokens: int = 5, accepted: float = 0.7) -> Drafts:
    return Drafts(tokens=tokens, accepted=accepted, method="eagle3", random=draws(7, "drafts"))


def test_the_acceptance_is_flat_and_the_gain_changes_its_sign_with_the_load() -> None:
    few, many = drafts(), drafts()

    gain_of_few = decode(2, None).seconds / decode(2, few).seconds
    gain_of_many = decode(256, None).seconds / decode(256, many).seconds

    assert few.accepted_tokens / few.drafted == pytest.approx(many.accepted_tokens / many.drafted, abs=0.05)
    assert gain_of_few > 1.5
    assert gain_of_many < 0.9


def test_a_draft_yields_its_accepted_tokens_and_one_more() -> None:
    all_accepted = drafts(tokens=3, accepted=1.0)

    run = decode(1, all_accepted)

    (request,) = run.requests
    assert (request.produced, request.chunks) == (
        200,
        51,
    )  # the first token, 49 steps of four, the last three
    assert (all_accepted.drafts, all_accepted.drafted) == (50, 149)


def test_the_page_counts_drafts_like_vllm() -> None:
    speculating, _ = build_server(parse(["--model", "m", "--speculative-config", FIVE]), lambda: 0.0)
    plain, _ = build_server(parse(["--model", "m"]), lambda: 0.0)

    page = speculating.metrics.text(speculating.scheduler)

    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert f"vllm:spec_decode_{name}_total{{" in page
    assert "spec_decode" not in plain.metrics.text(plain.scheduler)


@pytest.mark.parametrize("config", ["eagle", '{"method": "ngram"}', FIVE.replace("5", "0"), "[]"])
def test_a_config_that_cannot_be_read_is_refused(config: str) -> None:
    with pytest.raises(InvalidFlagError):
        parse(["--model", "m", "--speculative-config", config])


def test_without_the_flag_nothing_is_drafted() -> None:
    assert read_drafts(None, 0.5, draws(1, "drafts")) is None
