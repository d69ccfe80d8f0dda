"""Comparison of golden answers."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import comb
from random import Random

import pytest

from flettner.agent.domain.answers import GoldenAnswer
from flettner.agent.quality.comparison import ALPHA, MEASURES, compare, flaw_of, odd_one_probability

PROMPTS = 40
LENGTH = 48
WORDS = ("the", "sea", "rises", "when", "moon", "and", "sun", "pull", "from", "one", "side", "again")


def seeded(seed: int | str) -> Random:
    return Random(seed)  # noqa: S311 - noise, not cryptography


@cache
def answer(about: int, *, logprobs: bool = True, length: int = LENGTH) -> GoldenAnswer:
    """Return a deterministic answer to prompt number `about`."""
    draw = seeded(about)
    tokens = tuple(f" {draw.choice(WORDS)}" for _ in range(length))
    return of(tokens, tuple(-0.02 - 0.1 * draw.random() for _ in tokens) if logprobs else ())


def of(tokens: tuple[str, ...], logprobs: tuple[float, ...] = ()) -> GoldenAnswer:
    return GoldenAnswer(
        text="".join(tokens),
        finish_reason="length",
        length=len(tokens),
        tokens=tokens if logprobs else (),
        logprobs=logprobs,
    )


def answers(*, logprobs: bool = True) -> list[GoldenAnswer]:
    return [answer(about, logprobs=logprobs) for about in range(PROMPTS)]


def rounded_answers(draw: Random, *, flips: float, drift: float = 0.005) -> list[GoldenAnswer]:
    """Apply rounding noise: log-probabilities shift, and some texts diverge at equally likely tokens."""
    return [rounded(draw, exact, flips, drift) for exact in answers()]


def rounded(draw: Random, exact: GoldenAnswer, flips: float, drift: float) -> GoldenAnswer:
    tie = LENGTH // 4  # two equally likely tokens
    near = [logprob - drift * draw.random() for logprob in exact.logprobs]
    near[tie] = -0.7 - drift * draw.random()
    if draw.random() >= flips:
        return replace(exact, logprobs=tuple(near))
    other = seeded(exact.text)
    tokens = (*exact.tokens[:tie], " or", *(f" {other.choice(WORDS)}" for _ in range(LENGTH - tie - 1)))
    return of(tokens, tuple(near))


def test_the_same_answers_pass() -> None:
    comparison = compare(answers(), answers(), answers())

    assert comparison.ok
    assert (comparison.same, comparison.same_blue, comparison.drift, comparison.parted_at) == (
        1.0,
        1.0,
        0.0,
        None,
    )
    assert comparison.why.startswith("100% of 40 golden prompts answered word for word as by blue")


def test_answers_without_log_probabilities_are_compared_by_their_text() -> None:
    plain = answers(logprobs=False)

    assert compare(plain, plain, plain).ok
    assert not compare(plain, plain, [answer(about + 1000, logprobs=False) for about in range(PROMPTS)]).ok


def test_the_noise_of_batching_passes() -> None:
    draw = seeded(1)
    comparison = compare(*(rounded_answers(draw, flips=0.1) for _ in range(3)))

    assert comparison.ok
    assert 0.6 < comparison.same < 1
    assert 0.6 < comparison.same_blue < 1


def test_a_quantised_kv_cache_that_diverges_at_equally_likely_tokens_passes() -> None:
    draw = seeded(2)
    comparison = compare(
        rounded_answers(draw, flips=0.05),
        rounded_answers(draw, flips=0.05),
        rounded_answers(draw, flips=0.5, drift=0.1),
    )

    assert comparison.ok, comparison.why
    assert comparison.same < 0.7
    assert comparison.contradicted == 0
    assert comparison.parted_at == LENGTH // 4


def test_a_kv_cache_with_wrong_scales_shifts_log_probabilities_and_fails() -> None:
    draw = seeded(3)
    blue, again = rounded_answers(draw, flips=0.05), rounded_answers(draw, flips=0.05)
    comparison = compare(blue, again, rounded_answers(draw, flips=0.3, drift=1.0))

    assert not comparison.ok
    assert "has different log-probabilities" in comparison.why
    assert comparison.drift is not None
    assert comparison.drift > 0.2


@pytest.mark.parametrize("logprobs", [True, False])
def test_some_wrong_answers_fail(logprobs: bool) -> None:
    blue = answers(logprobs=logprobs)
    green = [answer(at + 1000, logprobs=logprobs) if at % 4 == 0 else blue[at] for at in range(PROMPTS)]

    comparison = compare(blue, blue, green)

    assert not comparison.ok
    assert (
        "in 10 of 40 golden prompts one of the three answers is the odd one out, 10 times green's"
        in comparison.why
    )
    assert comparison.same == 0.75


def test_answers_that_diverge_late_at_a_confident_token_fail() -> None:
    blue = answers()
    late = [of((*good.tokens[:40], *(" off",) * 8), good.logprobs) for good in blue]

    comparison = compare(blue, blue, late)

    assert not comparison.ok
    assert "at a token that one of them was sure of" in comparison.why
    assert comparison.parted_at == 40


SPOILT: dict[str, Callable[[GoldenAnswer], GoldenAnswer]] = {
    "empty": lambda _: GoldenAnswer(finish_reason="stop"),
    "looping": lambda good: of((*good.tokens[:8], *(" and", " so") * 20), good.logprobs),
    "refusing": lambda good: replace(good, text="I’m sorry, but I can’t help with that."),  # noqa: RUF001
    "failed": lambda _: GoldenAnswer(finish_reason="failed"),
}


@pytest.mark.parametrize("flaw", SPOILT)
def test_flawed_answers_fail_and_are_counted(flaw: str) -> None:
    blue = answers()
    green = [SPOILT[flaw](good) if at < 12 else good for at, good in enumerate(blue)]

    comparison = compare(blue, blue, green)

    assert flaw_of(green[0]) == flaw
    assert not comparison.ok
    assert "is empty, loops, refuses or failed" in comparison.why
    counts = {"empty": comparison.empty, "looping": comparison.looping}
    counts |= {"refusing": comparison.refusing, "failed": comparison.failed}
    assert {name: count for name, count in counts.items() if count} == {flaw: 12}


@pytest.mark.parametrize("flaw", SPOILT)
def test_flaws_that_blue_shares_do_not_fail_green(flaw: str) -> None:
    spoilt = [SPOILT[flaw](good) for good in answers()]

    comparison = compare(spoilt, spoilt, spoilt)

    assert comparison.ok
    assert comparison.bad_blue == PROMPTS


def test_truncated_answers_fail() -> None:
    blue = answers()
    comparison = compare(blue, blue, [of(good.tokens[:16], good.logprobs[:16]) for good in blue])

    assert not comparison.ok
    assert comparison.length == pytest.approx(1 / 3)


def test_plain_text_is_not_a_repetition() -> None:
    assert flaw_of(GoldenAnswer(text="one two three one two three four five", finish_reason="stop")) == ""
    assert flaw_of(GoldenAnswer(text="no " * 30, finish_reason="length")) == "looping"
    assert flaw_of(GoldenAnswer(text="Yes.", finish_reason="stop")) == ""


def test_a_comparison_without_answers_fails() -> None:
    assert not compare([], [], []).ok


def test_sets_of_different_sizes_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="zip"):
        compare(answers(), answers(), answers()[:-1])


@pytest.mark.parametrize(("odd", "green"), [(0, 0), (6, 6), (40, 23), (10, 3)])
def test_the_probability_is_a_binomial_tail(odd: int, green: int) -> None:
    plain = sum(comb(odd, k) * (1 / 3) ** k * (2 / 3) ** (odd - k) for k in range(green, odd + 1))

    assert odd_one_probability(odd, green) == pytest.approx(plain)


def noisy_answers(draw: Random) -> list[GoldenAnswer]:
    """A server so noisy that each margin is exceeded by chance at times."""
    noisy = []
    for good in answers():
        kind = draw.random()
        tokens = (
            answer(draw.randrange(PROMPTS, 1000), length=draw.choice((12, LENGTH))) if kind < 0.5 else good
        )
        drifted = tuple(logprob - draw.expovariate(3) for logprob in tokens.logprobs)
        noisy.append(GoldenAnswer(finish_reason="stop") if kind > 0.85 else replace(tokens, logprobs=drifted))
    return noisy


@pytest.mark.parametrize(("noise", "draws", "most"), [("batching", 60, 0), ("wild", 300, 8)])
def test_blue_against_blue_fails_at_most_as_often_as_stated(noise: str, draws: int, most: int) -> None:
    """ALPHA is 1 %; the probability of more than 8 of 300 at that rate is 0.4 %."""
    failed = 0
    for seed in range(draws):
        draw = seeded(seed)
        sets = [
            noisy_answers(draw) if noise == "wild" else rounded_answers(draw, flips=0.2) for _ in range(3)
        ]
        failed += not compare(*sets).ok

    assert len(MEASURES) == 5  # divisor of the error level
    assert ALPHA == 0.01
    assert failed <= most


def test_a_server_wrong_in_three_of_ten_answers_is_detected_as_often_as_stated() -> None:
    detected = 0
    for seed in range(100):
        draw = seeded(seed)
        blue = answers()
        green = [answer(at + 1000) if draw.random() < 0.3 else good for at, good in enumerate(blue)]
        detected += not compare(blue, blue, green).ok

    assert detected >= 95  # 99 % stated
