"""A server's load from the line that vLLM logs every ten seconds, where its /metrics cannot be reached."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.model import Slo
from flettner.agent.domain.reading import EngineSample
from flettner.agent.observe.aggregator import Aggregator
from flettner.tools.advisor.scrape import BEGIN, SERVER, Window
from flettner.vllm_facts.log_counts import INTERVAL_S, read_counts
from flettner.vllm_facts.metrics.names import METRICS

MAX_MOMENTS = 30  # the latest moments, five minutes
_LOGGED = {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"}
_NOT_LOGGED = METRICS - _LOGGED - {"prompt_tokens", "generation_tokens"}


@dataclass(slots=True)
class _Moment:
    """The sum of the lines of all engines at one moment."""

    engines: set[str]
    running: float = 0.0
    waiting: float = 0.0
    usage: float | None = None
    prompt: float = 0.0
    generation: float = 0.0


def read_load(log: Sequence[str], slo: Slo) -> Window:
    """Return the load of the latest five minutes in the log. Raises ConfigError if it has no such line."""
    moments = _moments(log)[-MAX_MOMENTS:]
    if not moments:
        raise ConfigError(
            "advise: the log has no line `Engine 000: Avg prompt throughput …` as vLLM writes under load; "
            "give the URL of the server, two saved scrapes, or a log of its busy time"
        )
    span_s = INTERVAL_S * len(moments)
    aggregator = Aggregator(slo=slo, span_s=span_s, fresh_s=INTERVAL_S)
    for number, moment in enumerate(moments, start=1):
        aggregator.add(
            EngineSample(
                at=BEGIN + timedelta(seconds=INTERVAL_S * number),
                server=SERVER,
                interval_s=INTERVAL_S,
                running=moment.running,
                waiting=moment.waiting,
                kv_usage=moment.usage,
                prompt_tokens=moment.prompt * INTERVAL_S,
                generation_tokens=moment.generation * INTERVAL_S,
                missing=_NOT_LOGGED,
            )
        )
    reading = aggregator.reading(SERVER, BEGIN + timedelta(seconds=span_s))
    if reading is None:
        raise ConfigError("advise: the log holds invalid numbers")
    return Window(reading=reading, engines=max(len(moment.engines) for moment in moments))


def _moments(log: Sequence[str]) -> list[_Moment]:
    """Return the moments in order; a moment ends when an engine logs its next line."""
    moments: list[_Moment] = []
    for count in read_counts(log):
        if not moments or count.engine in moments[-1].engines:
            moments.append(_Moment(engines=set()))
        moment = moments[-1]
        moment.engines.add(count.engine)
        moment.running += count.running
        moment.waiting += count.waiting
        moment.prompt += count.prompts
        moment.generation += count.answers
        if count.usage is not None:
            moment.usage = max(moment.usage or 0.0, min(1.0, count.usage / 100))
    return moments
