"""One run of `flettner tune`: trials one after the other, until the search ends or the time is over."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from flettner.agent.domain.errors import ActError, ConfigError
from flettner.performance_model.outcome import Goals
from flettner.performance_model.trace import Trace, TraceRequest
from flettner.primitives.quantiles import quantile
from flettner.tools.tuning.model_search import PointForecast
from flettner.tools.tuning.progress import Progress
from flettner.tools.tuning.replay import Served, replay
from flettner.tools.tuning.searches import Point, Search
from flettner.tools.tuning.space import Space
from flettner.tools.tuning.trials import TrialFile, TuningTrial
from flettner.tools.tuning.verdict import PairedVerdict, compare
from flettner.vllm_facts.shell_command.serve_command import ServeCommand, edit_command
from flettner.vllm_facts.values import describe_changes

_SHARES = (10, 50, 90, 99)


def summarise(served: Sequence[Served], goals: Goals) -> Mapping[str, float]:
    """Return seconds and shares, by the names of `flettner.performance_model.outcome.measure`."""
    done = [request for request in served if not request.why]
    good = sum(is_good(request, goals) for request in served)
    seconds = max((request.arrival_s + request.late_s + request.e2e_s for request in done), default=0.0)
    figures = {
        "attainment": good / max(1, len(served)),
        "failed_share": 1 - len(done) / max(1, len(served)),
        "tokens_per_s": sum(request.output_tokens for request in done) / max(1e-9, seconds),
        "late_p99_s": quantile(sorted(request.late_s for request in served), 0.99) if served else 0.0,
    }
    if served and served[-1].arrival_s:
        figures["goodput_per_s"] = good / served[-1].arrival_s
    series = {
        "ttft": sorted(request.ttft_s for request in done),
        "itl": sorted(request.itl_s for request in done if request.output_tokens > 1),
        "e2e": sorted(request.e2e_s for request in done),
    }
    for name, values in series.items():
        if values:
            figures[f"{name}_mean_s"] = sum(values) / len(values)
            figures.update({f"{name}_p{share}_s": quantile(values, share / 100) for share in _SHARES})
    return figures


def is_good(request: Served, goals: Goals) -> bool:
    return not request.why and all(
        limit is None or value <= limit
        for limit, value in (
            (goals.ttft_s, request.ttft_s),
            (goals.itl_s, request.itl_s),
            (goals.e2e_s, request.e2e_s),
        )
    )


WARM_UP = 8  # requests before the load, so that compilation is not measured
_WARM_UP_TOKENS = 16
LOGGED: Mapping[str, Any] = {"enable_logging_iteration_details": True}
_UNKNOWN_FLAG = "code 2"  # exit status of vLLM


class TunedServer(Protocol):
    """A server that only this run uses."""

    @property
    def url(self) -> str: ...

    @property
    def api_key(self) -> str: ...

    async def start(self, command: ServeCommand, log: Path) -> None:
        """Return when it is healthy. Raises ActError."""

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningPlan:
    """`logs_steps`: ask vLLM for a line of each step, in all trials, so that they are equal."""

    command: ServeCommand
    trace: Trace
    goals: Goals
    out: Path
    budget_s: float
    logs_steps: bool
    most_trials: int = 1000


class Session:
    def __init__(self, plan: TuningPlan, server: TunedServer, file: TrialFile, progress: Progress) -> None:
        self._plan = plan
        self._server = server
        self._file = file
        self._progress = progress
        self._until_s = asyncio.get_running_loop().time() + plan.budget_s
        self._longest_s = max((trial.seconds for trial in file.trials), default=0.0)

    async def measure_base(self) -> TuningTrial:
        """Return the trial of the setting in force, of this or an earlier run. ConfigError if it failed."""
        earlier = next((trial for trial in self._file.trials if trial.is_base and trial.good), None)
        if earlier is not None:
            return earlier
        trial = await self._try({}, {}, None, 0)
        if not trial.good:
            raise ConfigError(
                f"the given command does not serve: {trial.why}; its log: {self._plan.out / trial.log}"
            )
        return trial

    def place_base(self, space: Space) -> None:
        """Assign its point to the first trial, which was made before the space was known."""
        self._file.trials = [
            replace(trial, point=space.points[0]) if trial.is_base else trial for trial in self._file.trials
        ]

    async def search(self, space: Space, search: Search, forecasts: Sequence[PointForecast] = ()) -> None:
        predicted = [(forecast.point, forecast.goodput) for forecast in forecasts]
        while self._has_time() and len(self._file.tried()) < self._plan.most_trials:
            point = search.propose(self._file.tried())
            if point is None:
                return
            expected = next(
                (goodput for predicted_point, goodput in predicted if predicted_point == point), None
            )
            await self._try(point, space.changes_to(point), expected, 0)

    def best(self) -> PairedVerdict | None:
        """Compare the best setting with the setting in force; None if no other setting served."""
        base = [trial for trial in self._file.trials if trial.is_base and trial.good]
        tried = [
            trial
            for trial in self._file.tried()
            if trial.goodput is not None and trial.point != base[0].point
        ]
        if not tried:
            return None
        best = max(tried, key=lambda trial: trial.goodput or 0.0)
        return compare(base, self._file.of(best.point), self._plan.trace)

    async def confirm(self) -> None:
        """Repeat the best setting and the setting in force, once, if there is time."""
        verdict = self.best()
        if verdict is None or verdict.gain <= 0 or any(trial.round for trial in self._file.trials):
            return
        first = next(trial for trial in self._file.trials if trial.is_base)
        best = next(trial for trial in self._file.trials if trial.changes == verdict.changes)
        for trial in (best, first):
            if self._has_time():
                await self._try(trial.point, trial.changes, trial.predicted, 1)

    def _has_time(self) -> bool:
        return asyncio.get_running_loop().time() + self._longest_s <= self._until_s

    async def _try(
        self, point: Point, changes: Mapping[str, Any], predicted: float | None, number: int
    ) -> TuningTrial:
        loop, plan = asyncio.get_running_loop(), self._plan
        began_s = loop.time()
        self._progress.begin(f"trial {len(self._file.trials) + 1}, {describe_changes(changes) or 'as given'}")
        log = plan.out / f"server-{len(self._file.trials):03}.log"
        trial = TuningTrial(point=point, changes=changes, round=number, predicted=predicted, log=log.name)
        try:
            try:
                await self._start(changes, log)
                trial = await self._load(trial)
            finally:
                await self._server.stop()
        except ActError as error:
            last = error.log[-1] if error.log else ""
            trial = replace(trial, why=f"{error}: {last}" if last else str(error))
        trial = replace(trial, seconds=round(loop.time() - began_s, 1))
        self._longest_s = max(self._longest_s, trial.seconds)
        self._file.add(trial)
        share = "failed" if trial.goodput is None else f"{trial.goodput:.1%} within the objectives"
        self._progress.begin(f"trial {len(self._file.trials)}: {share}")
        return trial

    async def _start(self, changes: Mapping[str, Any], log: Path) -> None:
        self._progress.show("starts the server", 0.0)
        wanted = {**changes, **(LOGGED if self._plan.logs_steps else {})}
        try:
            await self._server.start(edit_command(self._plan.command, wanted, {}), log)
        except ActError as error:
            if not self._plan.logs_steps or _UNKNOWN_FLAG not in error.why:
                raise
            await self._server.stop()  # an older vLLM
            await self._server.start(edit_command(self._plan.command, changes, {}), log)

    async def _load(self, trial: TuningTrial) -> TuningTrial:
        plan, server = self._plan, self._server
        self._progress.show("warms up", 0.0)
        await replay(server.url, _warm_up(plan.trace), api_key=server.api_key, series="warm-up")
        served = await replay(
            server.url,
            plan.trace,
            api_key=server.api_key,
            ended=lambda count: self._progress.show("loads", count / len(plan.trace)),
        )
        failed = [request.why for request in served if request.why]
        if len(failed) == len(served):
            raise ActError(f"no request was answered: {failed[0]}")
        good = "".join("1" if is_good(request, plan.goals) else "0" for request in served)
        return replace(trial, measured=summarise(served, plan.goals), good=good)


def _warm_up(trace: Trace) -> list[TraceRequest]:
    return [
        replace(request, arrival_s=0.0, output_tokens=min(request.output_tokens, _WARM_UP_TOKENS))
        for request in trace[:WARM_UP]
    ]
