"""When a measured setting counts as better."""

from random import Random

from flettner.performance_model.trace import TraceRequest
from flettner.tools.tuning.trials import TuningTrial
from flettner.tools.tuning.verdict import compare

TRACE = [TraceRequest(arrival_s=float(at), prompt_tokens=10, output_tokens=5) for at in range(400)]
CHANGES = {"max_num_seqs": 8}


def base(good: str) -> TuningTrial:
    return TuningTrial(point={}, changes={}, good=good)


def other(good: str) -> TuningTrial:
    return TuningTrial(point=CHANGES, changes=CHANGES, good=good)


def test_a_gain_of_every_block_is_better() -> None:
    verdict = compare([base("10" * 200)], [other("1" * 400)], TRACE)

    assert (verdict.base, verdict.gain, verdict.is_better) == (0.5, 0.5, True)


def test_a_gain_of_a_single_block_is_noise() -> None:
    verdict = compare([base("0" * 30 + "1" * 370)], [other("1" * 400)], TRACE)

    assert verdict.gain > 0.02
    assert not verdict.is_better


def test_equal_settings_differ_by_chance_only() -> None:
    random = Random(1)  # noqa: S311 - reproducible
    verdicts = []
    for _ in range(200):
        goods = ["".join(random.choices("01", weights=(1, 9), k=400)) for _ in range(2)]
        verdicts.append(compare([base(goods[0])], [other(goods[1])], TRACE).is_better)

    assert sum(verdicts) <= 12  # 2.3 % above two standard errors, and a few by their own error


def test_rounds_are_averaged() -> None:
    verdict = compare([base("0" * 400), base("1" * 400)], [other("1" * 400)], TRACE)

    assert (verdict.base, verdict.gain) == (0.5, 0.5)
