"""What a step still needs before green may pass it, and when waiting for more is futile.

Green passes on one of three grounds:

- *better*: its goodput is proved better than that of blue. No proof stream by stream is asked for.
- *relieved*: blue's baseline misses the SLO, and green, harmless at a share of it, misses it less often than
  the baseline did (without proof after LOOK_LEAST_S). Equality with a relieved blue would say nothing, so the
  step is only a way to full load.
- *not worse*: each stream has its proof. A change that needs a gain must also show one, in one look after
  LOOK_S or LOOK_REQUESTS times phi.

A change that needs a gain ends as futile once evidence has ruled the least gain out for half a minute.
"""

from dataclasses import dataclass, replace
from math import log

from flettner.agent.domain.model import Slo, Step
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.trial import Trial
from flettner.agent.domain.verdict import Verdict
from flettner.agent.judge.canary import goodput as gp
from flettner.agent.judge.canary.admissibility import Inadmissible
from flettner.agent.judge.canary.evidence import FULL_WEIGHT, log_worse
from flettner.agent.judge.canary.gain import describe_gain
from flettner.agent.judge.failure_modes import LEAST_CONTROL
from flettner.agent.judge.wording import describe_counts

LOOKS_WORSE = log(10.0)
FEW, SOON_S = 10, 15.0  # requests and seconds of a step beside a blue that fails badly
FUTILE_FOR_S = 30.0  # one pause of a server looks futile too, and its evidence is gone seconds later
LOOK_S, LOOK_LEAST_S, LOOK_LEAST, LOOK_REQUESTS = 600.0, 300.0, 200, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One step: its counts, and what they are compared with."""

    trial: Trial
    step: Step
    slo: Slo
    green: RequestCounts
    blue: RequestCounts
    record: RequestCounts
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
        needed = self.trial.gain_needed
        return needed == "always" or (needed == "if_missed" and self.missed)

    @property
    def beside(self) -> bool:
        """Whether green is proved better than the blue beside it."""
        return not self.alone and gp.log_better(self.trial.goodput) >= gp.SURE_BETTER

    @property
    def relieved(self) -> bool:
        """Whether a green beside a relieved blue takes more: it is better than the baseline, or may be."""
        if not self.missed or not self.level or self.alone or self.trial.holding:
            return False
        of, bad = gp.count_missed(self.green)
        long = self.trial.valid_s >= LOOK_LEAST_S and of >= LOOK_LEAST / 2
        total, missed = gp.count_missed(self.record)
        gained = missed / total - bad / of if long else 0.0
        less = gained >= gp.least_gain(self.record) / 2 > 0
        return less or self.trial.goodput.record.most_good >= gp.SURE_RELIEVED


def decide(now: Situation) -> tuple[Trial, Verdict]:
    """The trial with what it has shown, and the verdict on a green that is not proved worse."""
    now = replace(now, trial=_note_better(now))
    now = replace(now, trial=_look(now))
    why_futile = _futile(now) if now.gain_needed and now.level else ""
    futile_s = now.trial.goodput.futile_s + 1.0 if why_futile else 0.0
    trial = replace(now.trial, goodput=replace(now.trial.goodput, futile_s=futile_s))
    now = replace(now, trial=trial)
    if futile_s >= FUTILE_FOR_S:
        return trial, Verdict(kind="futile", why=why_futile)
    first = _least(now)
    gain, proofs = _gain_lacks(now), _proofs(now)
    if lacks := [*first, *proofs, *gain]:
        counts = _describe_streams(trial)
        why = "; ".join([lacks[0], counts] if counts else lacks[:1])
        comparable = not now.missed or (now.alone and gp.compare_rate(trial, now.record) >= 0)
        lacks_gain = bool(gain) and not first and comparable
        return trial, Verdict(kind="wait", why=why, waits="; ".join(lacks), lacks_gain=lacks_gain)
    return trial, Verdict(kind="pass", why=_why_passed(now))


def _note_better(now: Situation) -> Trial:
    """Remember a proof of better goodput at a load that counts.

    Beside an overloaded blue it does not: blue still drains the queue of its full load, green never had one.
    """
    trial = now.trial
    if trial.better or not now.level:
        return trial
    settled = trial.holding and trial.valid_s > gp.burn_in_s(now.step)
    if now.beside and (settled or not now.missed):
        return replace(trial, better=f"better: {gp.describe_missed(trial.goodput)}")
    held = now.alone and now.missed and trial.valid_s >= now.step.at_least_s
    if held and gp.log_better_than_record(trial.goodput) >= gp.SURE_BETTER:
        return replace(trial, better=f"better: {with_record(now)}")
    return trial


def with_record(now: Situation) -> str:
    rate = f" at {now.trial.asked[1] / now.trial.asked_s:.3g} requests/s" if now.trial.asked_s else ""
    mine = gp.describe_missed(replace(now.trial.goodput, counted=(0, 0, *now.trial.goodput.counted[2:])))
    return f"{mine}{rate}, {gp.describe_record(now.trial, now.record)}"


def _look(now: Situation) -> Trial:
    """Compare green with a healthy blue in every measure, once: repeated looks would find noise."""
    trial, goodput = now.trial, now.trial.goodput
    due = trial.valid_s >= LOOK_S and now.green.total >= LOOK_LEAST
    enough = LOOK_REQUESTS * gp.goodput_phi(trial, now.slo)
    due = due or (trial.valid_s >= LOOK_LEAST_S and now.green.total >= enough)
    if goodput.looked or not due or not now.level or now.alone or now.missed:
        return trial
    level = (now.green, now.blue)
    found = describe_gain(trial, slo=now.slo, level=level, green=now.green, record=now.record)
    return replace(trial, goodput=replace(goodput, looked=True), gain=found)


def _futile(now: Situation) -> str:
    """Why no gain can be expected any more; empty if one can."""
    trial, goodput = now.trial, now.trial.goodput
    if trial.better or now.beside or trial.gain:
        return ""
    if now.missed:
        if now.alone and not _least(now) and gp.compare_rate(trial, now.record) >= 0:
            return f"no gain under full load: {with_record(now)}"
        if gp.log_futile_against_record(goodput) < gp.SURE_FUTILE:
            return ""
        least = gp.least_gain(now.record)
        return f"a gain of {100 * least:.2g} points is ruled out: {with_record(now)}"
    if now.alone or not goodput.looked or gp.log_futile(trial, now.slo) < gp.SURE_FUTILE:
        return ""
    ruled_out = f"a gain of {100 * gp.GAIN:.2g} points is ruled out"
    return f"{ruled_out}: {gp.describe_missed(goodput)}; no latency is measurably better"


def _least(now: Situation) -> list[str]:
    """What any pass needs: requests, time, comparable data, and no stream that looks worse."""
    trial, step = now.trial, now.step
    needed, least_s = max(1, step.requests), step.at_least_s
    if now.beside and not trial.holding and trial.missed[0] >= gp.BADLY * trial.missed[1] > 0:
        needed, least_s = min(needed, FEW), min(least_s, SOON_S)
    lacks: list[str] = []
    if now.hold.latency and not now.beside:
        lacks.append(now.hold.latency)
    if now.green.total < needed:
        lacks.append(f"green has answered {now.green.total} of {needed} requests")
    control = min(needed, LEAST_CONTROL)
    if not now.alone and now.blue.total < control:
        lacks.append(f"blue has answered {now.blue.total} of {control} requests meanwhile")
    if trial.valid_s < least_s:
        lacks.append(f"{trial.valid_s:.0f} of {least_s:.0f} s have passed")
    worse = (stream.name for stream in trial.streams if log_worse(stream) > LOOKS_WORSE)
    return [*lacks, *(f"{name} looks worse, which is not proved yet" for name in worse)]


def _proofs(now: Situation) -> list[str]:
    """The streams that lack their proof, where one is asked for."""
    if not now.level or now.beside or now.trial.better or now.relieved:
        return []
    if now.missed and now.gain_needed:
        return []
    busier = f" ({now.hold.busier})" if now.hold.busier else ""
    return [
        f"{stream.name}: evidence {gp.describe_odds(stream.requests.most_good, log(1 / now.beta))} that "
        f"green is not worse{busier}"
        for stream in now.trial.streams
        if stream.requests.most_good < log(1 / now.beta)
    ]


def _gain_lacks(now: Situation) -> list[str]:
    """What a change that needs a gain still lacks of it."""
    trial, goodput = now.trial, now.trial.goodput
    if not now.gain_needed or not now.level or now.beside or trial.better or trial.gain:
        return []
    if not now.missed:
        if now.alone:
            return []
        odds = gp.describe_odds(gp.log_better(goodput), gp.SURE_BETTER)
        return [f"goodput: evidence {odds} that green is better"]
    if now.relieved:
        return []
    if not now.alone:
        beside = gp.describe_odds(gp.log_better(goodput), gp.SURE_BETTER)
        record = gp.describe_odds(goodput.record.most_good, gp.SURE_RELIEVED)
        than_beside = f"goodput: evidence {beside} that green is better than blue beside it"
        than_record = f"{record} that it is better than blue's baseline"
        return [f"{than_beside}, {than_record}; full load not compared yet"]
    odds = gp.describe_odds(gp.log_better_than_record(goodput), gp.SURE_BETTER)
    lacks = f"goodput: evidence {odds} that green is better than blue's baseline under full load"
    if gp.compare_rate(trial, now.record) < 0:
        rate = trial.asked[1] / trial.asked_s
        return [f"{lacks}; green gets {rate:.3g} requests/s, {gp.describe_record(trial, now.record)}"]
    return [lacks]


def _why_passed(now: Situation) -> str:
    trial = now.trial
    after = f"after {now.green.total} requests in {trial.valid_s:.0f} s"
    if trial.better or now.beside:
        shown = trial.better.removeprefix("better: ") or gp.describe_missed(trial.goodput)
        return f"green is better {after}: {shown}"
    if now.relieved:
        return f"green is not harmful {after}, and takes more: {with_record(now)}; full load is compared next"
    counts = _describe_streams(trial)
    return f"green is not worse {after}: {counts}"


def _describe_streams(trial: Trial) -> str:
    return "; ".join(describe_counts(stream) for stream in trial.streams if any(stream.counted))
