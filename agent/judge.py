"""Compare green with blue by shares of bad requests: proved worse, proved not worse, or not known yet.

A share is worse when it exceeds the control's by more than a margin. The proof is the one-sided test of two
proportions with that margin, unpooled, one bad and one good request added to each arm (Agresti, Caffo 2000):

    p = (bad + 1) / (of + 2)      z = (p_green - p_control - margin) / sqrt(sum of p (1 - p) / (of + 2))

The judge is asked once a second, so `z` is higher than one look would need: `tests/agent/test_judge.py`
measures false alarms under that peeking. Shares above an edge, never percentiles, whose error is unknown.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from math import isfinite, sqrt

from agent.arm import Arm, over, quantile
from agent.model import Objective, Slo, Step
from agent.ports import Verdict

HOLD_BACK = 100  # the weight at which blue has no traffic of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """Bad requests of those counted, in green and in its control. `allowed`: what the SLO lets be bad."""

    name: str
    bad: int
    of: int
    control_bad: int
    control_of: int
    margin: float
    allowed: float | None = None

    @property
    def share(self) -> float:
        return self.bad / self.of if self.of else 0.0

    @property
    def control(self) -> float | None:
        return self.control_bad / self.control_of if self.control_of else self.allowed

    @property
    def beyond(self) -> int:
        """How many more are bad than the control's share of them."""
        return 0 if self.control is None else max(0, round(self.bad - self.control * self.of))

    @property
    def z(self) -> float:
        green, blue = (self.bad + 1) / (self.of + 2), (self.control_bad + 1) / (self.control_of + 2)
        variance = green * (1 - green) / (self.of + 2) + blue * (1 - blue) / (self.control_of + 2)
        return (green - blue - self.margin) / sqrt(variance)

    def __str__(self) -> str:
        beside = "nothing to compare with" if self.control is None else f"{self.control:.1%}"
        counts = (
            f" of {self.control_of}" if self.control_of else " allowed" if self.control is not None else ""
        )
        return f"{self.name} {self.share:.1%} of {self.of} against {beside}{counts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainJudge:
    """Errors, refusals and clients that gave up are compared at every weight, latencies from parity on.

    The control is blue beside green; in the hold-back, where blue has no traffic, it is blue's own record,
    with twice the margin because it is of another time. A latency is late above its objective, or above the
    control's own 90th percentile where that is higher: an already late blue excuses an equally late green.
    Without an objective, late is `unpromised_ratio` times that percentile: nothing was promised, so only a
    green that much slower is worse. An ITL that was not promised is not judged: larger batches trade it for
    TTFT, and what it costs a request as a whole shows in e2e.

    A refusal (status 400 to 499) is no answer. The clients' own mistakes meet both sides alike; a green that
    refuses what blue accepts has a smaller context, another name, or a limit of its own.
    """

    margin: float = 0.05
    z: float = 2.8
    control_at_least: int = 10  # requests of an arm, below which it is no evidence
    unpromised_ratio: float = 3.0
    guard_requests: int = 20  # the hard guard: so many answered …
    guard_bad: float = 0.5  # … of which this share is bad …
    guard_control_bad: float = 0.2  # … while less than this is of the control

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if not isfinite(value) or value < 0:
                raise ValueError(f"{option.name} must be a number from 0, not {value}")
        if self.control_at_least < 1 or self.guard_requests < 1 or self.unpromised_ratio < 1:
            raise ValueError("control_at_least, guard_requests and unpromised_ratio must be at least 1")

    def verdict(
        self, *, step: Step, slo: Slo, green: Arm, blue: Arm, record: Arm, elapsed_s: float
    ) -> Verdict:
        """The caller takes green back when `step.at_most_s` passes without a pass."""
        control, margin = self._control(step, blue, record, lambda arm: arm.total)
        refused = _refused(green, *self._control(step, blue, record, lambda arm: arm.asked))
        shares = [*_answers(slo, green, control, margin)]
        if step.weight >= step.parity:
            shares += self._latencies(slo, green, control, margin, excuse=step.weight >= HOLD_BACK)
        bad = max(refused.beyond, *(share.bad for share in shares))
        shares.append(refused)
        for share in shares:
            why = self._broken(share) or self._worse(share)
            if why:
                return Verdict(kind="fail", why=f"green is worse: {share}; {why}", bad=bad)
        missing = self._missing(step, green, blue, shares, elapsed_s)
        said = ", ".join(str(share) for share in shares)
        if missing:
            return Verdict(kind="wait", why=f"{missing}: {said}", bad=bad)
        why = f"green is not worse after {green.total} requests in {elapsed_s:.0f} s: {said}"
        return Verdict(kind="pass", why=why, bad=bad)

    def _control(self, step: Step, blue: Arm, record: Arm, count: Callable[[Arm], int]) -> tuple[Arm, float]:
        """The arm to compare with, one that has enough by `count`, and the margin beside it."""
        beside = step.weight < HOLD_BACK and count(blue) >= self.control_at_least
        control = blue if beside else record if count(record) >= self.control_at_least else Arm()
        return control, self.margin if beside and step.weight <= step.parity else 2 * self.margin

    def _latencies(
        self, slo: Slo, green: Arm, control: Arm, margin: float, *, excuse: bool
    ) -> Iterator[_Share]:
        """`excuse`: leave out a latency that green keeps its promise on, whatever the control did."""
        objectives = {"ttft": slo.ttft, "itl": slo.itl, "e2e": slo.e2e}
        for name, objective in objectives.items():
            counts, beside = getattr(green, name), getattr(control, name)
            if sum(beside) < self.control_at_least:
                beside = Arm().ttft
            edge_s = None if name == "itl" and objective is None else self._edge_s(beside, objective)
            if edge_s is None or (excuse and objective and _kept(counts, objective)):
                continue
            (bad, of), (control_bad, control_of) = over(counts, edge_s), over(beside, edge_s)
            if not of and not control_of:
                continue  # this traffic does not have it, or the proxy cannot measure it
            yield _Share(
                name=f"{name} above {edge_s:.3g} s",
                bad=bad,
                of=of,
                control_bad=control_bad,
                control_of=control_of,
                margin=margin,
                allowed=1 - objective.share if objective else None,
            )

    def _edge_s(self, beside: tuple[int, ...], objective: Objective | None) -> float | None:
        usual_s = quantile(beside, 0.9)
        if objective is None:
            return None if usual_s is None else usual_s * self.unpromised_ratio
        return max(objective.under_s, usual_s or 0.0)

    def _broken(self, share: _Share) -> str:
        absolute = share.name == "errors" and not share.control_of
        compared = share.control_of and share.control_bad / share.control_of < self.guard_control_bad
        if share.of >= self.guard_requests and share.share >= self.guard_bad and (absolute or compared):
            return f"at least {self.guard_bad:.0%} are bad"
        return ""

    def _worse(self, share: _Share) -> str:
        enough = min(share.of, share.control_of) >= self.control_at_least
        if enough and share.z > self.z:
            return f"more than the margin of {share.margin:.0%} (z {share.z:.1f} > {self.z:g})"
        return ""

    def _missing(self, step: Step, green: Arm, blue: Arm, shares: list[_Share], elapsed_s: float) -> str:
        """What a pass still lacks. Silence is never a proof."""
        needed, needed_beside = max(1, step.requests), min(max(1, step.requests), self.control_at_least)
        if green.total < needed:
            return f"green has answered {green.total} of {needed} requests"
        if step.weight < HOLD_BACK and blue.total < needed_beside:
            return f"blue has answered {blue.total} of {needed_beside} requests beside it"
        if elapsed_s < step.at_least_s:
            return f"{elapsed_s:.0f} of {step.at_least_s:.0f} s have passed"
        for share in shares:
            if share.of < min(needed, self.control_at_least):
                return f"green has too few measurements of {share.name}"
            if share.control is not None and share.share - share.control > share.margin:
                return f"{share.name} looks worse, not proved yet"
        return ""


def _answers(slo: Slo, green: Arm, control: Arm, margin: float) -> Iterator[_Share]:
    yield _Share(
        name="errors",
        bad=green.errors,
        of=green.total,
        control_bad=control.errors,
        control_of=control.total,
        margin=margin,
        allowed=1 - slo.errors,
    )
    yield _Share(
        name="clients gone",
        bad=green.gave_up,
        of=green.total + green.gave_up,
        control_bad=control.gave_up,
        control_of=control.total + control.gave_up if control.total else 0,
        margin=margin,
    )


def _refused(green: Arm, control: Arm, margin: float) -> _Share:
    return _Share(
        name="refused",
        bad=green.refused,
        of=green.asked,
        control_bad=control.refused,
        control_of=control.asked,
        margin=margin,
    )


def _kept(counts: tuple[int, ...], objective: Objective) -> bool:
    late, of = over(counts, objective.under_s)
    return of > 0 and late <= (1 - objective.share) * of
