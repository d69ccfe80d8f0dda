"""Predict the effect of a setting on containers before any is touched: strategy, times, problems."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal

from flettner.actuators.docker import capacity
from flettner.actuators.docker.clone import CreateRequest, clone, find_obstacles, notes_of
from flettner.actuators.docker.container import Container, Json
from flettner.actuators.docker.dry_run import dry_run
from flettner.actuators.docker.lifecycle import Lifecycle
from flettner.actuators.docker.log_head import measured_start, read_start_log
from flettner.actuators.docker.sleep import Sleeper
from flettner.actuators.docker.upgrade import why_not_moved
from flettner.actuators.vllm.flag_check import DryRunOutput, DryRunResult, find_rejection
from flettner.actuators.vllm.gpu_placement import Placement
from flettner.actuators.vllm.outage import predict_outage
from flettner.actuators.vllm.release_change import (
    ReleaseChange,
    describe_versions,
    find_release_change,
)
from flettner.actuators.vllm.server_state import describe_lost_state
from flettner.actuators.vllm.start_log import describe_start
from flettner.actuators.vllm.start_times import StartTimes
from flettner.agent.domain.model import PreflightResult, Server, Strategy
from flettner.agent.machine.strategy import StrategyChoice, choose_strategy
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.values import GPUS, Setting

_ANY_PORT = 8000  # for the network of the host: the port is chosen at the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """`blues`: the containers of `servers`, in their order; green is made like the last one."""

    sleeper: Sleeper
    blues: Sequence[Container]
    servers: Sequence[Server]
    setting: Setting
    templates: Sequence[Container] = ()  # the containers as the change makes them; empty: as they are
    gpu: str = ""  # the model of the servers' GPUs; empty: not known

    async def predict(self, wanted: Strategy | Literal["auto"]) -> PreflightResult:
        """Raises ActError when the Engine, or the image's own vLLM, cannot be asked."""
        if problem := await self._find_obstacle():
            return PreflightResult(problem=problem)
        try:
            candidates = [_candidate(blue, self.setting) for blue in self.templates or self.blues]
        except FlagError as error:
            return PreflightResult(problem=str(error), lasting=True)
        choice, problem, placement = await self._choose_strategy(wanted)
        if problem:
            return PreflightResult(problem=problem, lasting=True)
        if choice.strategy is None:
            return PreflightResult(problem=choice.why)
        if choice.strategy != "surge" and (unkept := _auto_removed(self.blues)):
            return PreflightResult(problem=unkept)
        checked, change = await self._check_flags(candidates[-1])
        if problem := change.problem or find_rejection(checked):
            return PreflightResult(problem=problem, lasting=True)
        result = await self._predict(choice.strategy, choice.why, checked)
        resolved = dict(change.resolved)
        if placement is not None:
            resolved |= placement.resolve(beside=choice.strategy == "surge")
            result = replace(result, shares_card=False)
        if GPUS in resolved and (problem := why_not_moved(self._pattern)):
            return PreflightResult(problem=problem)
        versions = describe_versions(vLLM=change.versions)
        notes = (*change.notes, *result.notes)
        return replace(result, notes=notes, resolved=resolved, versions=versions)

    @property
    def _lifecycle(self) -> Lifecycle:
        return self.sleeper.lifecycle

    @property
    def _pattern(self) -> Container:
        return self.blues[-1]

    @property
    def _template(self) -> Container:
        """What green is made like."""
        return (self.templates or self.blues)[-1]

    async def _find_obstacle(self) -> str:
        """Return why no like container can be made of one of them, with the fix; empty: it can."""
        images: dict[str, Json | None] = {}
        for blue in self.blues:
            if blue.image not in images:
                images[blue.image] = await self._lifecycle.client.image(blue.image)
            if obstacles := find_obstacles(blue, images[blue.image]):
                return f"{blue.name} cannot be made again: {'; '.join(obstacles)}"
        return ""

    async def _choose_strategy(
        self, wanted: Strategy | Literal["auto"]
    ) -> tuple[StrategyChoice, str, Placement | None]:
        """Return the strategy, why no host like this can run the setting (empty: it can), and other GPUs."""
        client = self._lifecycle.client
        host = await capacity.measure_host(client, self.blues)
        held = [
            await capacity.measure_holding(blue, client, server.setting)
            for blue, server in zip(self.blues, self.servers, strict=True)
        ]
        placement = capacity.find_placement(held, self.servers[-1].setting, self.setting, host)
        problem = "" if placement is None else placement.shortage
        if placement is None:
            shortages = (capacity.gpu_shortage(blue, self.setting, host) for blue in self.blues)
            problem = next(filter(None, shortages), "")
        problem = problem or next(
            filter(None, (capacity.host_shortage(blue, self.setting, host) for blue in self.blues)), ""
        )
        if problem:
            return StrategyChoice(strategy=None, why=problem), problem, None
        free = capacity.free_capacity(held, self.setting, host, placement)
        return choose_strategy(wanted, len(self.servers), free), "", placement

    async def _check_flags(self, candidate: CreateRequest) -> tuple[DryRunResult, ReleaseChange]:
        """Ask vLLM about the running and the new command, with the flags of the new release."""
        site = self._lifecycle.site
        if not site.acts:
            return DryRunResult(
                why="advise mode starts no container to check them with vLLM"
            ), ReleaseChange()
        client, argv = self._lifecycle.client, self._pattern.serve.argv
        if self._template.image == self._pattern.image:
            return await dry_run(client, site, self._template, [argv, candidate.argv]), ReleaseChange()
        now = await dry_run(client, site, self._pattern, [argv])
        then = await dry_run(client, site, self._template, [candidate.argv])
        if now.why or then.why:
            return then if then.why else now, ReleaseChange()
        change = await asyncio.to_thread(
            find_release_change, self.setting, self._template.env, now.version, then.version, self.gpu
        )
        if change.resolved and not change.problem:
            migrated = _candidate(self._template, change.apply(self.setting))
            then = await dry_run(client, site, self._template, [migrated.argv])
        versions = f"{now.version} → {then.version}"
        return replace(then, answers=(*now.answers, *then.answers), version=versions), change

    async def _predict(self, strategy: Strategy, why: str, checked: DryRunResult) -> PreflightResult:
        times, pattern = self._lifecycle.times, self._pattern
        key, cache = self._template.start_key, predict_cache_state(pattern, checked)
        times.foresee(key, self.setting, cache.warm)
        log = await read_start_log(self._lifecycle.client, pattern)
        start_s, note = times.predict(key, cache.warm, measured_start(log, pattern))
        notes = (
            *cache.notes,
            note,
            *describe_start(log),
            *notes_of(pattern),
            *describe_lost_state(pattern.env),
        )
        outage_s = 0.0
        if strategy == "swap":
            verdict = await self.sleeper.judge(pattern)
            outage_s, parts = predict_outage(times, key, self.servers[-1].name, verdict, start_s)
            notes = (*parts, *notes)
        return PreflightResult(
            strategy=strategy,
            why=why,
            start_s=start_s,
            deadline_s=times.learned(key, cache.warm),
            outage_s=outage_s,
            shares_card=strategy == "surge",  # like containers get the same GPUs
            notes=notes,
            unchecked=not self._lifecycle.site.acts,
        )


def predict_saving(blues: Sequence[Container], times: StartTimes) -> PreflightResult:
    """Whether the last of these containers can be stopped and started again as they are."""
    if unkept := _auto_removed(blues):
        return PreflightResult(problem=unkept)
    start_s, note = times.predict(blues[-1].start_key, None, None)
    return PreflightResult(strategy="save", start_s=start_s, notes=(note,))


def _auto_removed(blues: Sequence[Container]) -> str:
    """Return why these containers cannot be swapped out and in again, with the fix; empty: they can."""
    names = [blue.name for blue in blues if blue.auto_remove]
    if not names:
        return ""
    return (
        f"{', '.join(names)} must stop for the new server, and --rm removes a container that stops: "
        "start it without --rm"
    )


def _candidate(blue: Container, setting: Setting) -> CreateRequest:
    """Return the like container with this setting, without creating it. Raises FlagError."""
    port = _ANY_PORT if blue.network_mode == "host" else None
    return clone(blue, name="green", labels={}, setting=setting, port=port)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheState:
    """The compile cache of a start. `warm`: nothing has to be compiled; None if unknown."""

    warm: bool | None
    notes: tuple[str, ...]  # for the operator who approves


def predict_cache_state(blue: Container, checked: DryRunResult) -> CacheState:
    """Predict it for a container like `blue`. `checked`: its running command, then the candidate."""
    if checked.why:
        return CacheState(warm=None, notes=(f"only the start itself tests the flags: {checked.why}",))
    now, then = checked.answers
    if not then.ok:
        why = f"vLLM {checked.version} cannot judge this model without a network or weights: {then.error}"
        return CacheState(warm=None, notes=(f"only the start itself tests the flags: {why}",))
    takes = f"vLLM {checked.version} accepts these flags{_changes(now, then)}"
    warm, why = _warm(blue, checked.cache, now, then)
    return CacheState(warm=warm, notes=(takes, why))


def _warm(blue: Container, cache: str, now: DryRunOutput, then: DryRunOutput) -> tuple[bool | None, str]:
    if not then.compiles:
        return True, "nothing is compiled with these flags: every start is a warm one"
    if not then.hash:
        return None, "this vLLM does not report whether it has to compile"
    if not _kept(blue, cache):
        fix = f"mount a volume on {cache} to make starts warm" if cache else "its folder is not known"
        return False, f"it compiles again: compiled graphs are not kept when a container is removed; {fix}"
    if not now.ok or now.hash != then.hash:
        return False, "it compiles again: the compiled graphs depend on these flags"
    return True, f"compiled graphs are found in {cache}, which old and new servers share"


def _kept(blue: Container, cache: str) -> bool:
    """Whether the folder lies in a writable mount, which all like containers share."""
    targets = [mount.destination for mount in blue.mounts if mount.writable]
    return bool(cache) and any(PurePosixPath(cache).is_relative_to(target) for target in targets)


def _changes(now: DryRunOutput, then: DryRunOutput) -> str:
    """Return the differences in the resolved configuration, with defaults that follow other flags."""
    if not now.ok:
        return ""
    names = [name for name in then.resolved if now.resolved.get(name) != then.resolved[name]]
    changed = [f"{name} {now.resolved.get(name)} → {then.resolved[name]}" for name in names]
    return f"; resolved by it: {', '.join(changed)}" if changed else ""
