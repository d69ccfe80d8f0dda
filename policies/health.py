"""Hold every change while requests fail, engines hang or differ, or the server restarts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flettner.agent.domain.lateness import exceeds_share
from flettner.agent.domain.model import Proposal, Slo
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import EngineWindow, Reading, RequestOutcome
from flettner.policies.shared.signals import Measured, build_note, check_options
from flettner.vllm_facts.references import METRICS
from flettner.vllm_facts.releases import cite

HUNG_S = 10.0  # the shortest window that shows it: flettner.agent.judge.server_health waits as long
MOST_ALLOWED = 0.5  # a server that fails half of its requests fails, whatever the SLO allows
WAIT = "every change waits"
WAIT_BUT_CAP = f"{WAIT}, except a higher cap (Q1) where the queue is behind a low one"
_LOGGERS = cite("vllm/v1/metrics/loggers.py")
SOURCES = {
    "HC1": f"{_LOGGERS}: num_requests_running, prompt_tokens, generation_tokens",
    "HC2": f"{METRICS} (counters begin anew)",
    "HC3": f"{_LOGGERS}: request_success; https://sre.google/workbook/alerting-on-slos/",
    "HC4": cite("vllm/v1/engine/async_llm.py: _record_admission_rejection"),
    "HC5": f"{_LOGGERS}: request_success, finished_reason",
    "HC6": f"{_LOGGERS}: per_engine",
    "HC7": f"{_LOGGERS}: num_requests_waiting_by_reason",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Rules HC1 to HC7. While one of them fires, its precedence holds all other proposals.

    A share of requests is tested, as late requests are: a few of them prove nothing.
    """

    error_burn: float = 14.4  # allowed errors, times those of the SLO: the paging rate of the SRE workbook
    requests_at_least: int = 5  # that failed, were rejected or aborted
    aborted_ratio: float = 0.05  # above it the latencies, which lack these, are not those of 95 %
    queue_at_least: float = 1.0  # HC6 and HC7: requests that wait, in both halves of the window
    deferred_ratio: float = 0.5  # HC7: of the waiting requests
    running_ratio: float = 0.1  # HC7: of the running requests; a busy KV transfer always has a few
    idle_engine_ratio: float = 0.5  # HC6: of the load, or of the fair share of requests
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        if any(incident.what == "oom" for incident in reading.incidents):
            return ()  # M2 knows the cause, and its remedy must not wait
        notes = [self._note_restart(reading), *self._note_requests(reading, context.slo)]
        if reading.coverage >= self.coverage_at_least_ratio:
            hang = self._note_hang(reading)
            notes += [hang, None if hang else self._note_imbalance(reading), self._note_deferred(reading)]
        return tuple(note for note in notes if note)

    def _note_hang(self, reading: Reading) -> Proposal | None:
        """Requests run and no token advances. A prompt that is computed in chunks takes more of the cache."""
        usage = reading.kv_usage
        if reading.span_s < HUNG_S:
            return None
        sleeps = reading.facts.get("sleep_state", "awake")
        if reading.stands_still and sleeps != "awake":
            why = f"the server sleeps ({sleeps}) while {reading.waiting.mean:.0f} requests wait"
            return _build("HC1", reading, why, "wake it with POST /wake_up")
        if reading.stands_still and (usage is None or usage.high <= usage.low):
            load = f"{reading.running.mean:.0f} requests ran and {reading.waiting.mean:.0f} waited"
            why = f"the server hangs: for {reading.span_s:.0f} s {load}, and no token was computed"
            return _build(
                "HC1", reading, why, "restart the server; its log, or py-spy, shows where it stands"
            )
        engines = reading.health.engines
        hung = [name for name, engine in engines.items() if engine.running.low > 0 and not engine.tokens]
        if not hung or len(hung) == len(engines):
            return None
        why = (
            f"engine {', '.join(hung)} of {len(engines)} hangs: for {reading.span_s:.0f} s "
            f"{engines[hung[0]].running.mean:.0f} requests ran there and no token was computed"
        )
        count = ("hung_engines", float(len(hung)), "engines")
        advice = "restart the server; its log shows where the engine stands"
        return _build("HC1", reading, why, advice, count)

    def _note_restart(self, reading: Reading) -> Proposal | None:
        restarts = reading.health.restarts
        if not restarts:
            return None
        why = (
            f"the server restarted {restarts} time(s) within {reading.span_s:.0f} s: its counters began anew"
        )
        advice = (
            "find out why it ended, in the log before the restart and in the kernel's (OOM), before tuning"
        )
        return _build("HC2", reading, why, advice, ("restarts", float(restarts), "restarts"))

    def _note_requests(self, reading: Reading, slo: Slo) -> Iterator[Proposal | None]:
        allowed = min(MOST_ALLOWED, self.error_burn * max(0.0, 1 - slo.errors))
        rejected = sum(reading.health.rejected.values())
        failed, of, how = _count_failed(reading, rejected)
        if self._is_proved(failed, of, allowed):
            share = failed / of
            why = (
                f"{failed:.0f} of {of:.0f} requests ({share:.1%}) failed in {reading.span_s:.0f} s: {how}; "
                f"the SLO allows {1 - slo.errors:.2%}"
            )
            advice = "find the cause in the server's log; no flag is judged by the requests that are left"
            yield _build("HC3", reading, why, advice, ("failed", share, "ratio"))
        arrived = of + rejected
        if self._is_proved(rejected, arrived, allowed):
            limits = ", ".join(
                f"{count:.0f} by {limit}" for limit, count in reading.health.rejected.items() if count
            )
            why = (
                f"{rejected:.0f} of {arrived:.0f} requests ({rejected / arrived:.1%}) were rejected with 503 "
                f"in {reading.span_s:.0f} s: {limits}"
            )
            advice = "the limit of the queue sheds load: raise the limit, or add servers, before tuning"
            yield _build("HC4", reading, why, advice, ("rejected", rejected / arrived, "ratio"))
        yield self._note_aborts(reading)

    def _note_aborts(self, reading: Reading) -> Proposal | None:
        aborted, of = _count_aborted(reading)
        if not self._is_proved(aborted, of, self.aborted_ratio):
            return None
        why = (
            f"{aborted:.0f} of {of:.0f} requests ({aborted / of:.1%}) were aborted in {reading.span_s:.0f} s"
        )
        advice = (
            "find out what aborts them: a shutdown, a client's timeout, a call of /abort_requests; the "
            "latencies are those of the rest"
        )
        return _build("HC5", reading, why, advice, ("aborted", aborted / of, "ratio"))

    def _is_proved(self, bad: float, of: float, allowed: float) -> bool:
        return bad >= max(self.requests_at_least, 1) and exceeds_share(min(1.0, bad / of), allowed, of)

    def _note_imbalance(self, reading: Reading) -> Proposal | None:
        engines = reading.health.engines
        if len(engines) <= 1:
            return None
        load = {name: engine.running.mean + engine.waiting.mean for name, engine in engines.items()}
        most, least = max(load, key=lambda name: load[name]), min(load, key=lambda name: load[name])
        queues = self._queues_beside(engines[most], engines[least])
        if not queues and not self._gets_too_few(engines, least):
            return None
        what = ", ".join(
            f"engine {name} had {engine.running.mean:.1f} running and {engine.waiting.mean:.1f} waiting and "
            f"ended {engine.ended:.0f}"
            for name, engine in ((most, engines[most]), (least, engines[least]))
        )
        why = f"the {len(engines)} data-parallel engines differ in load over {reading.span_s:.0f} s: {what}"
        advice = (
            "balance the load first: sessions that stick to an engine, requests pinned by "
            "X-data-parallel-rank, or an engine that is slower than the others"
        )
        spread = ("engine_load_least", load[least], "requests"), ("engine_load_most", load[most], "requests")
        return _build("HC6", reading, why, advice, *spread)

    def _queues_beside(self, busy: EngineWindow, free: EngineWindow) -> bool:
        """True if requests always wait at one engine while another has no queue and runs half as many."""
        waits = busy.waiting.low > 0 and min(busy.waiting.early, busy.waiting.late) >= self.queue_at_least
        return (
            waits
            and free.waiting.high <= 0
            and free.running.high <= self.idle_engine_ratio * busy.running.low
        )

    def _gets_too_few(self, engines: Mapping[str, EngineWindow], least: str) -> bool:
        """True if an engine gets fewer requests than chance explains for a fair share."""
        of, fair = sum(engine.ended for engine in engines.values()), 1 / len(engines)
        if not of or engines[least].ended > self.idle_engine_ratio * fair * of:
            return False
        return exceeds_share(1 - engines[least].ended / of, 1 - fair, of)

    def _note_deferred(self, reading: Reading) -> Proposal | None:
        deferred, waiting = reading.health.deferred, reading.waiting
        if deferred is None or deferred.low <= 0:
            return None
        halves = ((deferred.early, waiting.early), (deferred.late, waiting.late))
        least = max(self.queue_at_least, self.running_ratio * reading.running.mean)
        if any(half < max(least, self.deferred_ratio * queue) for half, queue in halves):
            return None
        why = (
            f"{deferred.mean:.1f} of {waiting.mean:.1f} waiting requests were deferred over "
            f"{reading.span_s:.0f} s: they wait for something other than a slot or the KV cache"
        )
        advice = (
            "find what they wait for: a LoRA slot (--max-loras), a KV transfer, or the grammar of structured "
            "output; more sequences do not help them"
        )
        return _build("HC7", reading, why, advice, ("deferred", deferred.mean, "requests"))


def _build(rule: str, reading: Reading, why: str, advice: str, *numbers: Measured) -> Proposal:
    wait = WAIT_BUT_CAP if rule in {"HC4", "HC5"} else WAIT
    note = build_note(rule, reading, why, f"{wait}; {advice}", "", *numbers)
    return replace(note, source=SOURCES[rule])


def _count_failed(reading: Reading, rejected: float) -> tuple[float, float, str]:
    """Failed requests, all requests that were not rejected, and how they failed.

    By the proxy if it saw any request, else by the server's own counters.
    """
    seen = reading.requests
    if not seen:
        return _count_reported(reading, rejected)
    without_answer, cut = max(0.0, seen.get("failed", 0) - rejected), seen.get("truncated", 0)
    of = without_answer + cut + seen.get("ok", 0) + seen.get("aborted", 0)
    how = f"{without_answer:.0f} without an answer or with a status of 500 or more, {cut} cut short"
    return without_answer + cut, of, how


def _count_reported(reading: Reading, rejected: float) -> tuple[float, float, str]:
    """A request that ends with an error is also answered 500, unless its answer had begun."""
    health = reading.health
    errors, ended = health.ended.get("error", 0.0), sum(health.ended.values())
    statuses = max(0.0, health.answered.get("5xx", 0.0) - rejected)
    failed = max(errors, statuses)
    of = max(ended - errors + failed, statuses + health.answered.get("2xx", 0.0))
    return failed, of, f"{errors:.0f} ended with an error, {statuses:.0f} were answered 5xx"


def _count_aborted(reading: Reading) -> tuple[float, float]:
    """Aborted requests and all that ended."""
    if seen := reading.requests:
        answered: tuple[RequestOutcome, ...] = ("ok", "truncated", "aborted")
        return seen.get("aborted", 0), sum(seen.get(outcome, 0) for outcome in answered)
    ended = reading.health.ended
    return ended.get("abort", 0.0), sum(ended.values())


plugin = Health
