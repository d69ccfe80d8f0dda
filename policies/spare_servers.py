"""Suggest fewer servers where they carry the peak of the last week, with `[targets.cost] save = true`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from flettner.agent.domain.lateness import misses_any
from flettner.agent.domain.model import SERVERS, Proposal, SavingLimits
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.performance_model.extrapolation import FAR_RATE
from flettner.policies.shared.signals import build_evidence, check_options, has_insufficient_data
from flettner.vllm_facts.references import SCALING

SOURCE = SCALING
REST = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareServers:
    """Rule N2. The context has a headroom only where savings are wanted. Servers are counted by the lower end
    of its band, as far as their steps are like those that the law was fitted to.
    """

    load_at_most_ratio: float = 0.8  # of what the remaining servers carry, that the peak may be
    hours_at_least: float = 144  # of known peaks: a week has days unlike the others
    peak_at_most_times: float = FAR_RATE  # the load that the headroom is of
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        headroom = context.headroom
        if headroom is None or has_insufficient_data(reading, self.coverage_at_least_ratio):
            return ()
        if (
            headroom.hours < self.hours_at_least
            or headroom.certain_rps is None
            or headroom.peak_rps > self.peak_at_most_times * headroom.recorded_rps
            or _ended_lately(context, reading.at)
        ):
            return ()
        if misses_any(reading, context.slo, 1):
            return ()
        server_rps = headroom.capacity_rps.low / headroom.servers
        at_most_rps = min(self.load_at_most_ratio * server_rps, headroom.certain_rps)
        enough = max(1, ceil(headroom.peak_rps / at_most_rps))
        while _was_late(context, enough):
            enough += 1
        if enough >= context.servers:
            return ()
        why = (
            f"the busiest minute of the last {headroom.hours / 24:.0f} days had {headroom.peak_rps:.3g} "
            f"requests/s, and {enough} of {context.servers} servers keep the SLO at {headroom.share:.0%} "
            f"up to {enough * server_rps:.3g}"
        )
        saved = (
            ""
            if headroom.saved_per_hour is None
            else f", {headroom.saved_per_hour / (headroom.servers - headroom.enough):.3g} an hour each"
        )
        return (
            Proposal(
                rule="N2",
                to={SERVERS: enough},
                why=why,
                expects=f"{context.servers - enough} fewer servers to pay for{saved}",
                risks="requests may be late for the minutes in which a server starts again, once more load "
                "comes than last week",
                source=SOURCE,
                evidence=build_evidence(
                    reading,
                    ("peak_rps", headroom.peak_rps, "1/s"),
                    ("server_capacity_low", server_rps, "1/s"),
                ),
                klass="gated",
                saving=SavingLimits(peak_rps=headroom.peak_rps, server_rps=server_rps),
            ),
        )


def _ended_lately(context: Context, at: datetime) -> bool:
    """Whether servers were needed again within a day: the headroom may not know of it yet."""
    return any(
        SERVERS in outcome.to and outcome.result != "promoted" and at - outcome.at < REST
        for outcome in context.outcomes
    )


def _was_late(context: Context, servers: int) -> bool:
    """Whether so few servers have missed the SLO before."""
    return any(
        outcome.result == "rolled_back" and outcome.to.get(SERVERS) == servers for outcome in context.outcomes
    )


plugin = SpareServers
