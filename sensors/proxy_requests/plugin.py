"""Receives the proxy's access logs, and emits the outcomes of requests once a second."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_fixed

from flettner.agent.domain.model import Slo
from flettner.agent.domain.ports import Now, View
from flettner.agent.domain.reading import RequestSample, Sample
from flettner.agent.domain.request_counts import RequestSource
from flettner.agent.plugins.option_errors import check_periods
from flettner.agent.retrying import failure, retry
from flettner.clients.envoy_records.record import envoy_home, records_socket
from flettner.clients.kubernetes.options import ClusterOptions
from flettner.primitives.wall_clock import utc_now
from flettner.sensors.proxy_requests.access_log import OpenRequests
from flettner.sensors.proxy_requests.inbox import SourceCondition, TargetInbox
from flettner.sensors.proxy_requests.record_socket import subscribed
from flettner.sensors.shared.source_reporter import SourceReporter

SOURCE = "proxy_requests"
UNREADABLE = "proxy_requests records"
RETRY_S = 5.0
QUIET_S = 60.0  # without an unreadable record, after which the source is available again
LOST_S = 2.5  # a gap of this length is visible to an observation, which is made each second
STALLED_AFTER_S = {"stalled_after_s": 60.0, "unstreamed_stalled_after_s": 120.0}  # at least
TIMES_PROMISED = 10.0  # the largest promised latency


@dataclass(frozen=True, kw_only=True)
class ProxyRequests(ClusterOptions):
    """`paths`: prefixes of the paths that count. Only records of a cluster import the client of Kubernetes.

    A request is stalled long after every promise is broken: slow answers have objectives of their own. An
    answer that is not streamed has no byte before its end, so it counts as stalled later.
    """

    paths: tuple[str, ...] = ("/v1/",)
    stalled_after_s: float | None = None
    unstreamed_stalled_after_s: float | None = None
    every_s: float = 1.0
    deployment: str = ""  # whose pods run Envoy; empty: the Envoy of this host
    listen: str = ""  # where gateways send their access logs by OTLP; empty: no gateway does
    route: str = ""  # with `listen`: the HTTPRoute whose requests count
    rule: str = ""  # of that HTTPRoute, by name or place; empty: all rules

    def __post_init__(self) -> None:
        object.__setattr__(self, "paths", tuple(self.paths))  # TOML has lists
        if not self.paths or not all(str(path).startswith("/") for path in self.paths):
            raise ValueError(f'paths must be prefixes such as "/v1/", not {self.paths!r}')
        given = [name for name in STALLED_AFTER_S if getattr(self, name) is not None]
        check_periods(self, *given, "every_s")
        if self.listen and not self.route:
            raise ValueError("listen needs route: the HTTPRoute whose requests count")
        for name in ("deployment", "listen", "route", "rule", "namespace", "kubeconfig", "context"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be a string, not {getattr(self, name)!r}")

    @property
    def request_source(self) -> RequestSource | None:
        """None: the requests count as the proxy reports them."""
        return "access_log" if self.listen else None

    def slo_problems(self, slo: Slo) -> Iterator[str]:
        """A limit below a promise would count requests that may still keep it."""
        for name, least_s in STALLED_AFTER_S.items():
            given_s = getattr(self, name)
            if given_s is not None and given_s <= slo.longest_s:
                fix = f"raise it, or omit it for {_default_limit(slo, least_s):g}"
                yield f"{name}: {given_s:g} s is not above {slo.longest_s:g} s, which the SLO promises: {fix}"

    def stall_limits(self, slo: Slo) -> dict[str, float]:
        """The seconds without a first byte after which a request is stalled, by option."""
        return {
            name: _default_limit(slo, least_s) if getattr(self, name) is None else getattr(self, name)
            for name, least_s in STALLED_AFTER_S.items()
        }

    async def run(self, view: View, emit: Callable[[Sample], None], now: Now) -> None:
        inbox = TargetInbox(self.paths, OpenRequests(**self.stall_limits(view.slo)))
        reporter = SourceReporter(emit, now, initial=None)
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            state = await self._subscribe(stack, view, inbox, reporter)
            while True:
                await asyncio.sleep(self.every_s)
                _report_source(inbox, state(), reporter, loop.time())
                _report_unreadable(inbox, reporter, loop.time())
                requests, lost = inbox.requests.take_decided(loop.time()), inbox.requests.take_lost()
                if requests or lost:
                    emit(RequestSample(at=now(), requests=requests, lost=lost))

    async def _subscribe(
        self, stack: AsyncExitStack, view: View, inbox: TargetInbox, reporter: SourceReporter
    ) -> Callable[[], SourceCondition]:
        """Subscribe to the records; return the object that knows whether records arrive."""
        if self.deployment:
            from flettner.sensors.proxy_requests.pod_records import subscribed_to_pods  # noqa: PLC0415

            key = (self.client(), self.deployment)
            pods = await stack.enter_async_context(subscribed_to_pods(key, view.target, inbox))
            return pods.state
        path = records_socket(envoy_home(view.state_dir))

        async def listen() -> Callable[[], SourceCondition]:
            if self.listen:
                return await self._listen_to_gateways(stack, view, inbox)
            await stack.enter_async_context(subscribed(path, view.target, inbox, utc_now))
            return lambda: inbox.state(is_known=SOURCE in reporter.states)

        def report(state: RetryCallState) -> None:
            why = f"cannot listen on {self.listen or path}: {failure(state)}"
            reporter.report(SOURCE, available=False, why=why)

        listening = AsyncRetrying(
            retry=retry_if_exception_type(OSError), wait=wait_fixed(RETRY_S), before_sleep=report
        )
        return await retry(listening, listen)

    async def _listen_to_gateways(
        self, stack: AsyncExitStack, view: View, inbox: TargetInbox
    ) -> Callable[[], SourceCondition]:
        from flettner.sensors.proxy_requests.gateway_follower import (  # noqa: PLC0415
            name_routes,
            subscribed_to_gateways,
        )

        names = await name_routes(self.client(), self.route, self.rule)
        follower = await stack.enter_async_context(subscribed_to_gateways(self.listen, names, view, inbox))
        return follower.state


def _default_limit(slo: Slo, least_s: float) -> float:
    return max(least_s, TIMES_PROMISED * slo.longest_s)


def _report_source(
    inbox: TargetInbox, state: SourceCondition, reporter: SourceReporter, now_s: float
) -> None:
    if now_s < inbox.lost_s + LOST_S:
        reporter.report(SOURCE, available=False, why=inbox.why_lost)
    elif state is not None:
        available, why = state
        reporter.report(SOURCE, available=available, why=why)


def _report_unreadable(inbox: TargetInbox, reporter: SourceReporter, now_s: float) -> None:
    if inbox.unreadable:
        why = f"{inbox.unreadable} cannot be read and do not count: {inbox.why}"
        reporter.report(UNREADABLE, available=False, why=why)
        if now_s > inbox.unreadable_s + QUIET_S:
            why = f"{inbox.unreadable} could not be read, none for {QUIET_S:g} s"
            reporter.report(UNREADABLE, available=True, why=why)
            inbox.unreadable = 0


plugin = ProxyRequests
