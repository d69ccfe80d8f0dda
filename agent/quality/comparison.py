"""Does green answer as blue does? Golden prompts at temperature 0, to blue, to green, and to blue again.

Batching alone changes texts, so blue against itself is the yardstick. Each measure compares the three answers
to a prompt and finds the odd one out: the one that is further from the two remaining ones than these are from
each other. If green were another blue, the three would be exchangeable, and in the prompts with an odd one
out it would be green with a chance of at most 1 in 3, whatever the noise. Of k such prompts, g or more with
green as the odd one have a chance of P(Bin(k, 1/3) >= g): exact, one look, nothing estimated.

Green fails a measure when that chance is at most ALPHA / 5 (five measures, by the union bound) and the mean
excess over blue's distance from itself is beyond the measure's margin. So P(failing a green that is another
blue) <= ALPHA; the margin only lowers it. This holds for noise that is independent between prompts; noise of
a full round, such as load on blue alone, is left to the margins. Power: without noise in blue 6 odd ones
suffice (3^-6 < ALPHA / 5), and a green that answers 30 % of 40 prompts wrongly is found with P(Bin(40, 0.3)
>= 6) = 99 %.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import comb, log, log10
from statistics import fmean, median

from flettner.agent.domain.answers import AnswerComparison, GoldenAnswer
from flettner.primitives.quantiles import mean

ALPHA = 0.01  # chance that a green equal to blue fails
SURE = log(0.9)  # of a token: the next one lies log(9) = 2.2 nats below, and no rounding moves it so far
EARLY = 4  # words; without log-probabilities, earlier divergence counts as one at a sure token
LEAST_LOGPROB = -10.0  # vLLM says -9999 for impossible
LONGEST_LOOP = 8  # tokens that repeat
LEAST_LOOPED = 12  # tokens that a loop covers, and half of the answer
REFUSAL = re.compile(
    r"\bI(?: a|')m (?:sorry|unable|not able)|\bI (?:can(?:no|')t|am unable|must decline|won't)\b"
    r"|\bas an AI\b|\bI apologi[sz]e\b",
    re.IGNORECASE,
)


Triple = tuple[float, float, float]  # of blue's first answer, of its second, of green's


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measure:
    """`spread`: how far each of three answers stands apart; green's less blue's mean is the excess."""

    says: str
    spread: Callable[[GoldenAnswer, GoldenAnswer, GoldenAnswer], Triple]
    margin: float  # mean excess over blue with itself that is tolerated


def compare(
    blue: Sequence[GoldenAnswer], again: Sequence[GoldenAnswer], green: Sequence[GoldenAnswer]
) -> AnswerComparison:
    """Compare green's answers with blue's two by prompt. Raises ValueError if their numbers differ."""
    sets = list(zip(blue, again, green, strict=True))
    if not sets:
        return AnswerComparison(ok=False, why="there are no golden prompts")
    counted = _count_answers(blue, again, green)
    for measure in MEASURES:
        spreads = [measure.spread(*three) for three in sets]
        odd = [at for at in map(_odd_one_out, spreads) if at is not None]
        excess = fmean(green - (blue + again) / 2 for blue, again, green in spreads)
        by_luck = odd_one_probability(len(odd), odd.count(_GREEN))
        if excess > measure.margin and by_luck <= ALPHA / len(MEASURES):
            why = (
                f"green's answer {measure.says}: in {len(odd)} of {len(sets)} golden prompts one of the "
                f"three answers is the odd one out, {odd.count(_GREEN)} times green's; chance of that "
                f"if green were another blue: under 1 in {_round_odds(1 / by_luck)}"
            )
            return replace(counted, ok=False, why=why)
    return counted


def odd_one_probability(odd: int, green: int) -> float:
    """P(Bin(odd, 1/3) >= green): that green is the odd one so often if it were another blue."""
    ways: int = sum(comb(odd, k) << (odd - k) for k in range(green, odd + 1))
    return float(ways / 3**odd)


def _round_odds(odds: float) -> str:
    """Round down to a power of ten, at most a million: 1 in 729 is shown as 1 in 100."""
    return f"{10 ** min(int(log10(odds)), 6):,}"


def _count_answers(
    blue: Sequence[GoldenAnswer], again: Sequence[GoldenAnswer], green: Sequence[GoldenAnswer]
) -> AnswerComparison:
    both = [*zip(blue, green, strict=True), *zip(again, green, strict=True)]
    own = list(zip(blue, again, strict=True))
    length, blue_length = sum(a.length for a in green), sum(a.length for a in (*blue, *again)) / 2
    apart = [_equal(*pair) for pair in both if _parted(*pair)]
    flaws = [flaw_of(answer) for answer in green]
    counted = AnswerComparison(
        ok=True,
        why="",
        prompts=len(green),
        same=fmean(not _parted(*pair) for pair in both),
        same_blue=fmean(not _parted(*pair) for pair in own),
        contradicted=fmean(_contradicted(*pair) for pair in both),
        contradicted_blue=fmean(_contradicted(*pair) for pair in own),
        parted_at=median(apart) if apart else None,
        drift=_mean_drift(both),
        drift_blue=_mean_drift(own),
        length=length / blue_length if blue_length else None,
        empty=flaws.count("empty"),
        looping=flaws.count("looping"),
        refusing=flaws.count("refusing"),
        failed=flaws.count("failed"),
        bad_blue=sum(map(bool, map(flaw_of, blue))),
    )
    return replace(counted, why=_summarise(counted))


def _summarise(counted: AnswerComparison) -> str:
    drift = ""
    if counted.drift is not None and counted.drift_blue is not None:
        drift = f", log-probabilities differ by {counted.drift:.3f} (blue's own by {counted.drift_blue:.3f})"
    return (
        f"{counted.same:.0%} of {counted.prompts} golden prompts answered word for word as by blue, which "
        f"agrees with itself on {counted.same_blue:.0%}{drift}"
    )


def _mean_drift(pairs: Sequence[tuple[GoldenAnswer, GoldenAnswer]]) -> float | None:
    return mean(drift for pair in pairs if (drift := _drift_if_any(*pair)) is not None)


_GREEN = 2


def _odd_one_out(spread: Triple) -> int | None:
    """Which of the three is furthest from the rest; None on a tie."""
    most = max(spread)
    return spread.index(most) if spread.count(most) == 1 else None


def _spread_by(
    distance: Callable[[GoldenAnswer, GoldenAnswer], float],
) -> Callable[[GoldenAnswer, GoldenAnswer, GoldenAnswer], Triple]:
    """Each answer's distance from the other two."""

    def spread(blue: GoldenAnswer, again: GoldenAnswer, green: GoldenAnswer) -> Triple:
        near, far, wide = distance(blue, again), distance(blue, green), distance(again, green)
        return near + far, near + wide, far + wide

    return spread


def _flawed(*answers: GoldenAnswer) -> Triple:
    blue, again, green = (float(bool(flaw_of(answer))) for answer in answers)
    return blue, again, green


def _words(first: GoldenAnswer, second: GoldenAnswer) -> tuple[Sequence[str], Sequence[str]]:
    """Tokens where both have them, else words."""
    return (
        (first.tokens, second.tokens)
        if first.tokens and second.tokens
        else (first.text.split(), second.text.split())
    )


def _equal(first: GoldenAnswer, second: GoldenAnswer) -> int:
    """Tokens, or words, before they diverge."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*_words(first, second), strict=False))
    )


def _parted(first: GoldenAnswer, second: GoldenAnswer) -> float:
    longest = max(map(len, _words(first, second)))
    return 1 - _equal(first, second) / longest if longest else 0.0


def _contradicted(first: GoldenAnswer, second: GoldenAnswer) -> float:
    at = _equal(first, second)
    if at == max(map(len, _words(first, second))):
        return 0.0
    if not (first.tokens and second.tokens):
        return float(at < EARLY)
    return float(any(answer.logprobs[at] >= SURE for answer in (first, second) if at < len(answer.logprobs)))


def _drift(first: GoldenAnswer, second: GoldenAnswer) -> float:
    """0 if nothing can be compared."""
    return _drift_if_any(first, second) or 0.0


def _drift_if_any(first: GoldenAnswer, second: GoldenAnswer) -> float | None:
    pairs = list(zip(first.logprobs, second.logprobs, strict=False))[: _equal(first, second)]
    if not (first.tokens and second.tokens and pairs):
        return None
    return fmean(abs(_bounded(a) - _bounded(b)) for a, b in pairs)


def _bounded(logprob: float) -> float:
    return min(max(logprob, LEAST_LOGPROB), 0.0)


def _lengths(first: GoldenAnswer, second: GoldenAnswer) -> float:
    longer = max(first.length, second.length)
    return 1 - min(first.length, second.length) / longer if longer else 0.0


def flaw_of(answer: GoldenAnswer) -> str:
    """One of "failed", "empty", "looping", "refusing"; "" for a proper answer."""
    if answer.finish_reason in {"failed", "abort"}:
        return "failed"
    if not answer.text.strip():
        return "empty"
    if _loops(answer.tokens or answer.text.split()):
        return "looping"
    return "refusing" if REFUSAL.search(answer.text.replace("’", "'")) else ""  # noqa: RUF001 - as models write


def _loops(tokens: Sequence[str]) -> bool:
    """Whether half of the answer repeats the same few tokens at its end."""
    for period in range(1, LONGEST_LOOP + 1):
        run = 0
        while run + period < len(tokens) and tokens[-1 - run] == tokens[-1 - run - period]:
            run += 1
        if run >= max(LEAST_LOOPED, 2 * period) and 2 * (run + period) >= len(tokens):
            return True
    return False


MEASURES = (
    _Measure(says="is empty, loops, refuses or failed", spread=_flawed, margin=0.05),
    _Measure(
        says="diverges from blue's at once, or at a token that one of them was sure of",
        spread=_spread_by(_contradicted),
        margin=0.05,
    ),
    _Measure(says="has different log-probabilities", spread=_spread_by(_drift), margin=0.15),
    _Measure(says="has a different length", spread=_spread_by(_lengths), margin=0.25),
    _Measure(says="diverges from blue's early", spread=_spread_by(_parted), margin=0.5),
)
"""Margins allow for small changes, as by a coarser value of a knob: 1 prompt in 20; 0.15 nats, a seventh of a
token's probability; a quarter of the length; half of each answer."""
