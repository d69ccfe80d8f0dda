"""What a step still needs before green may pass it, and when waiting for more is futile.

Green passes on one of three grounds:

- *better*: its goodput is proved better than that of blue. No proof stream by stream is asked for.
- *relieved*: blue's baseline misses the SLO, and green, harmless at a share of it, misses it less often than
  the baseline did (without proof after LOOK_LEAST_S). Equality with a relieved blue would say nothing, so the
  step is only a way to full load. On a card that both share such a step only divides the hardware: it can
  show harm, and is over once it has not.
- *not worse*: each stream has its proof. A change that needs a gain must also show one, in one look after
  LOOK_S or LOOK_REQUESTS times phi.

A change that needs a gain ends as futile once evidence has ruled the least gain out for half a minute.
"""

from dataclasses import dataclass, replace
from math import log

from flettner.agent.domain.canary_evidence import CanaryEvidence, Counts, EvidenceStream
from flettner.agent.domain.model import Slo, Step
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.verdict import Verdict
from flettner.agent.judge import attainment, hard_limits
from flettner.agent.judge.canary import goodput as gp
from flettner.agent.judge.canary.admissibility import Inadmissible
from flettner.agent.judge.canary.clients import log_not_worse, log_worse
from flettner.agent.judge.canary.evidence import FULL_WEIGHT
from flettner.agent.judge.canary.gain import describe_gain
from flettner.agent.judge.failure_modes import LEAST_CONTROL
from flettner.agent.judge.wording import describe_counts, describe_duration, describe_odds

LOOKS_WORSE = log(10.0)
FEW, SOON_S = 10, 15.0  # requests and seconds of a step while blue fails badly
FUTILE_FOR_S = 30.0  # one pause of a server looks futile too, and its evidence is gone seconds later
LOOK_S, LOOK_LEAST_S, LOOK_LEAST, LOOK_REQUESTS = 600.0, 300.0, 200, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One step: its counts, and the counts with which they are compared."""

    evidence: CanaryEvidence
    step: Step
    slo: Slo
    green: RequestCounts
    blue: RequestCounts
    baseline: RequestCounts
    missed: bool  # blue's baseline misses the SLO
    hold: Inadmissible
    beta: float

    @property
    def alone(self) -> bool:
        return self.step.weight >= FULL_WEIGHT

    @property
    def level(self) -> bool:
        """Whether green carries at least as much as each other server."""
        return self.step.weight >= self.step.parity

    @property
    def gain_needed(self) -> bool:
        needed = self.evidence.gain_needed
        return needed == "always" or (needed == "if_missed" and self.missed)

    @property
    def beside(self) -> bool:
        """Whether green is proved better than blue in the same seconds."""
        return not self.alone and gp.log_better(self.evidence) >= gp.SURE_BETTER

    @property
    def relieved(self) -> bool:
        """Whether green takes more traffic of a relieved blue: it is, or may be, better than the baseline.

        Also of a blue that fails on the card that both share.
        """
        if not self.level or self.alone or self.evidence.holding:
            return False
        if self.hold.draining or not self.missed:
            return self.hold.draining
        less = self._gained >= attainment.least_gain(self.baseline) / 2 > 0
        return less or gp.most_better(self.evidence.goodput) >= gp.SURE_RELIEVED

    @property
    def _gained(self) -> float:
        """How much less often than the baseline it misses the SLO, whatever one client does; 0: too early."""
        without = (every.counted for every in self.evidence.goodput.without.values())
        sides = [
            attainment.count_missed(self.green),
            *((counts.green, counts.green_bad) for counts in without),
        ]
        if self.evidence.valid_s < LOOK_LEAST_S or min(of for of, _ in sides) < LOOK_LEAST / 2:
            return 0.0
        total, missed = attainment.count_missed(self.baseline)
        return missed / total - max(bad / of for of, bad in sides)


def decide(now: Situation) -> tuple[CanaryEvidence, Verdict]:
    """The evidence with what it has shown, and the verdict on a green that is not proved worse."""
    now = replace(now, evidence=_note_better(now))
    now = replace(now, evidence=_look(now))
    why_futile = _futile(now) if now.gain_needed and now.level else ""
    futile_s = now.evidence.goodput.futile_s + 1.0 if why_futile else 0.0
    evidence = replace(now.evidence, goodput=replace(now.evidence.goodput, futile_s=futile_s))
    now = replace(now, evidence=evidence)
    if futile_s >= FUTILE_FOR_S:
        return evidence, Verdict(kind="futile", why=why_futile)
    first = _least(now)
    gain, unproven = _gain_lacks(now), _unproven(now)
    if lacks := [*first, *(_describe_proof(now, stream) for stream in unproven), *gain]:
        counts = _describe_streams(evidence)
        why = "; ".join([lacks[0], counts] if counts else lacks[:1])
        comparable = not now.missed or (now.alone and gp.compare_rate(evidence, now.baseline) >= 0)
        lacks_gain = bool(gain) and not first and comparable
        only = () if first or gain else tuple(stream.name for stream in unproven)
        waits = "; ".join(lacks)
        return evidence, Verdict(
            kind="wait", why=why, waits=waits, lacks_proof_of=only, lacks_gain=lacks_gain
        )
    return evidence, Verdict(kind="pass", why=_why_passed(now))


def _note_better(now: Situation) -> CanaryEvidence:
    """Remember a proof of better goodput at a load that counts.

    Beside an overloaded blue it does not: blue still drains the queue of its full load, green never had one.
    """
    evidence = now.evidence
    if evidence.better or not now.level:
        return evidence
    settled = evidence.holding and evidence.valid_s > gp.burn_in_s(now.step)
    if now.beside and (settled or not now.missed):
        return replace(evidence, better=f"better: {gp.describe_missed(evidence.goodput.counted)}")
    held = now.alone and now.missed and evidence.valid_s >= now.step.at_least_s
    if held and gp.log_better_than_baseline(evidence.goodput) >= gp.SURE_BETTER:
        return replace(evidence, better=f"better: {with_baseline(now)}")
    return evidence


def with_baseline(now: Situation) -> str:
    rate = (
        f" at {now.evidence.asked[1] / now.evidence.asked_s:.3g} requests/s" if now.evidence.asked_s else ""
    )
    counts = now.evidence.goodput.counted
    mine = gp.describe_missed(Counts(green=counts.green, green_bad=counts.green_bad))
    return f"{mine}{rate}, {gp.describe_baseline(now.evidence, now.baseline)}"


def _look(now: Situation) -> CanaryEvidence:
    """Compare green with a healthy blue in every measure, once: repeated looks would find noise."""
    evidence, goodput = now.evidence, now.evidence.goodput
    due = evidence.valid_s >= LOOK_S and now.green.total >= LOOK_LEAST
    enough = LOOK_REQUESTS * attainment.goodput_phi(evidence.calibration, now.slo)
    due = due or (evidence.valid_s >= LOOK_LEAST_S and now.green.total >= enough)
    if goodput.looked or not due or not now.level or now.alone or now.missed:
        return evidence
    level = (now.green, now.blue)
    gain = describe_gain(evidence, slo=now.slo, level=level, green=now.green, baseline=now.baseline)
    return replace(evidence, goodput=replace(goodput, looked=True), gain=gain)


def _futile(now: Situation) -> str:
    """Why no gain can be expected any more; empty if one can."""
    evidence, goodput = now.evidence, now.evidence.goodput
    if evidence.better or now.beside or evidence.gain:
        return ""
    if now.missed:
        drained = evidence.drained_s >= now.step.at_least_s
        if now.alone and drained and not _least(now) and gp.compare_rate(evidence, now.baseline) >= 0:
            return f"no gain under full load: {with_baseline(now)}"
        if gp.log_no_gain(goodput) < gp.SURE_FUTILE:
            return ""
        least = attainment.least_gain(now.baseline)
        return f"a gain of {100 * least:.2g} points is ruled out: {with_baseline(now)}"
    if (
        now.alone
        or now.hold.draining
        or not goodput.looked
        or gp.log_futile(evidence, now.slo) < gp.SURE_FUTILE
    ):
        return ""
    ruled_out = f"a gain of {100 * attainment.GAIN:.2g} points is ruled out"
    return f"{ruled_out}: {gp.describe_missed(goodput.counted)}; no latency is measurably better"


def _least(now: Situation) -> list[str]:
    """What any pass needs: requests, time, comparable data, and no stream that looks worse."""
    evidence, step = now.evidence, now.step
    needed, least_s = max(1, step.requests), step.at_least_s
    if (
        now.beside
        and not evidence.holding
        and evidence.missed[0] >= attainment.BADLY * evidence.missed[1] > 0
    ):
        needed, least_s = min(needed, FEW), min(least_s, SOON_S)
    lacks: list[str] = []
    if now.hold.latency and not now.beside:
        lacks.append(now.hold.latency)
    if now.green.total < needed:
        lacks.append(f"green has answered {now.green.total} of {needed} requests")
    control = min(needed, LEAST_CONTROL)
    if not now.alone and now.blue.total < control:
        lacks.append(f"blue has answered {now.blue.total} of {control} requests meanwhile")
    if evidence.valid_s < least_s:
        lacks.append(f"{describe_duration(evidence.valid_s)} of {describe_duration(least_s)} have passed")
    worse = (stream.name for stream in evidence.streams if _looks_worse(stream))
    return [*lacks, *(f"{name} looks worse, which is not proved yet" for name in worse)]


def _looks_worse(stream: EvidenceStream) -> bool:
    """By its evidence, or by its counts while they are too few for the hard limits."""
    control, control_bad, green, green_bad = stream.counted
    usual = control_bad / control if control else 0.0
    mostly = 0 < green < hard_limits.REQUESTS and green_bad / green >= hard_limits.BAD + usual
    return mostly or log_worse(stream) > LOOKS_WORSE


def _unproven(now: Situation) -> list[EvidenceStream]:
    """The streams that lack their proof, where one is asked for."""
    if not now.level or now.beside or now.evidence.better or now.relieved:
        return []
    if now.missed and now.gain_needed:
        return []
    return [stream for stream in now.evidence.streams if log_not_worse(stream) < log(1 / now.beta)]


def _describe_proof(now: Situation, stream: EvidenceStream) -> str:
    busier = f" ({now.hold.busier})" if now.hold.busier else ""
    odds = describe_odds(log_not_worse(stream), log(1 / now.beta))
    return f"{stream.name}: evidence {odds} that green is not worse{busier}"


def _gain_lacks(now: Situation) -> list[str]:
    """What a change that needs a gain still lacks of it."""
    evidence, goodput = now.evidence, now.evidence.goodput
    if not now.gain_needed or not now.level or now.beside or evidence.better or evidence.gain:
        return []
    if not now.missed:
        if now.alone or now.relieved:
            return []
        odds = describe_odds(gp.log_better(evidence), gp.SURE_BETTER)
        return [f"goodput: evidence {odds} that green is better"]
    if now.relieved:
        return []
    if not now.alone:
        beside = describe_odds(gp.log_better(evidence), gp.SURE_BETTER)
        baseline = describe_odds(gp.most_better(goodput), gp.SURE_RELIEVED)
        than_beside = f"goodput: evidence {beside} that green is better than blue beside it"
        than_baseline = f"{baseline} that it is better than blue's baseline"
        return [f"{than_beside}, {than_baseline}; full load not compared yet"]
    odds = describe_odds(gp.log_better_than_baseline(goodput), gp.SURE_BETTER)
    lacks = f"goodput: evidence {odds} that green is better than blue's baseline under full load"
    if gp.compare_rate(evidence, now.baseline) < 0:
        rate = evidence.asked[1] / evidence.asked_s
        return [f"{lacks}; green gets {rate:.3g} requests/s, {gp.describe_baseline(evidence, now.baseline)}"]
    return [lacks]


def _why_passed(now: Situation) -> str:
    evidence = now.evidence
    after = f"after {now.green.total} requests in {describe_duration(evidence.valid_s)}"
    if evidence.better or now.beside:
        shown = evidence.better.removeprefix("better: ") or gp.describe_missed(evidence.goodput.counted)
        return f"green is better {after}: {shown}"
    if now.relieved:
        return (
            f"green is not harmful {after}, and takes more: {with_baseline(now)}; full load is compared next"
        )
    counts = _describe_streams(evidence)
    return f"green is not worse {after}: {counts}"


def _describe_streams(evidence: CanaryEvidence) -> str:
    return "; ".join(describe_counts(stream) for stream in evidence.streams if any(stream.counted))
