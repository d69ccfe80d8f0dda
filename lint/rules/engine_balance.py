"""Engines of one server that do not get as many requests as they have room for: rule F8."""

from collections.abc import Iterable, Mapping, Sequence

from flettner.lint.recogniser import LOG
from flettner.vllm_facts.log_counts import Count, read_counts
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck

MANY, ROOMY = 8, 80.0  # requests that wait at one engine; percent of the KV cache of another
TIMES, ROUNDS = 4, 3  # as many requests as another engine, in so many counts of both


def _check_balance(config: ServeConfig) -> Iterable[Finding]:
    engines = _read_engines(config.log)
    if len(engines) < 2:  # noqa: PLR2004 - nothing to share out
        return
    why, evidence = _explain_queue(engines) or _explain_load(engines) or ("", {})
    if not why:
        return
    yield Finding(
        rule="F8",
        severity="warning",
        why=why,
        expects=(
            "vLLM's balancer compares numbers of requests, not their lengths, and by counts that lag behind "
            "the steps: newer releases send them earlier and share out ties in turn "
            "(vllm-project/vllm#41626, #47420). Else start one server for each GPU behind a router that "
            "knows their load, or send the rank with each request (X-data-parallel-rank)"
        ),
        risks="a router of its own is one more part to run",
        evidence=evidence,
    )


def _read_engines(log: Sequence[str]) -> Mapping[str, list[Count]]:
    """The counts of each engine, the latest last."""
    engines: dict[str, list[Count]] = {}
    for count in read_counts(log):
        if count.engine:
            engines.setdefault(count.engine, []).append(count)
    return engines


def _explain_queue(engines: Mapping[str, list[Count]]) -> tuple[str, Mapping[str, int]] | None:
    """Requests that wait at one engine while another, that works on fewer, has room in its cache."""
    latest = [counts[-1] for counts in engines.values()]
    busy = max(latest, key=lambda count: count.waiting)
    roomy = [each for each in latest if _has_room(each) and 2 * each.running < busy.running + busy.waiting]
    if busy.waiting < MANY or not roomy:
        return None
    other = min(roomy, key=lambda count: count.usage or 0.0)
    why = (
        f"by the log's latest counts {busy.waiting} requests wait at engine {int(busy.engine)}, while "
        f"engine {int(other.engine)} runs {other.running} with {other.usage:g} % of its KV cache and lets "
        "none wait: the engines do not share the load"
    )
    return why, {"waiting": busy.waiting, "engines_with_room": len(roomy)}


def _has_room(count: Count) -> bool:
    return not count.waiting and count.usage is not None and count.usage < ROOMY


def _explain_load(engines: Mapping[str, list[Count]]) -> tuple[str, Mapping[str, int]] | None:
    """An engine that runs many times as many requests as another, again and again."""
    if any(len(counts) < ROUNDS for counts in engines.values()):
        return None
    least = {name: min(each.running for each in counts[-ROUNDS:]) for name, counts in engines.items()}
    most = {name: max(each.running for each in counts[-ROUNDS:]) for name, counts in engines.items()}
    busy, idle = max(least, key=least.__getitem__), min(most, key=most.__getitem__)
    if least[busy] < max(MANY, TIMES * most[idle]):
        return None
    why = (
        f"in the log's last {ROUNDS} counts engine {int(busy)} runs {least[busy]} requests or more, and "
        f"engine {int(idle)} at most {most[idle]}: the engines do not share the load"
    )
    return why, {"most": least[busy], "least": most[idle]}


LINTS = (
    DeploymentCheck(
        rules=("F8",),
        find=_check_balance,
        reports="engines of one server (data parallelism) that do not share the requests by what they hold",
        source="vllm/v1/engine/core_client.py: DPLBAsyncMPClient; vllm-project/vllm#36748; "
        "vllm-project/vllm#48808",
        needs=LOG,
    ),
)
