"""The health of a server over a window: how its requests ended, and the load of each of its engines."""

from collections.abc import Mapping, Sequence
from itertools import chain

from flettner.agent.domain.reading import EngineWindow, Health
from flettner.agent.observe.window import SampleWindow, average_gauge


def summarize_health(window: SampleWindow) -> Health:
    samples = window.samples
    deferred = [sample.deferred for sample in samples if sample.deferred is not None]
    return Health(
        ended=_sum_by_key([sample.finished for sample in samples]),
        answered=_sum_by_key([sample.answered for sample in samples]),
        rejected=_sum_by_key([sample.rejected for sample in samples]),
        deferred=average_gauge(window, deferred) if len(deferred) == len(samples) else None,
        engines=_summarize_engines(window),
        restarts=sum(sample.restarted for sample in samples),
    )


def _sum_by_key(counts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The keys in the order of their first occurrence."""
    keys = dict.fromkeys(chain.from_iterable(counts))
    return {key: sum([one.get(key, 0.0) for one in counts], 0.0) for key in keys}


def _summarize_engines(window: SampleWindow) -> dict[str, EngineWindow]:
    """Empty if the engines changed inside the window."""
    names = window.samples[0].engines.keys()
    if not names or any(sample.engines.keys() != names for sample in window.samples):
        return {}
    found = {}
    for name in names:
        shares = [sample.engines[name] for sample in window.samples]
        found[name] = EngineWindow(
            running=average_gauge(window, [share.running for share in shares]),
            waiting=average_gauge(window, [share.waiting for share in shares]),
            tokens=sum(share.tokens for share in shares),
            ended=sum(share.ended for share in shares),
        )
    return found
