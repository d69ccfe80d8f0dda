"""Predict the effect of a setting on containers before any is touched: strategy, times, problems."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from flettner.actuators.docker import capacity
from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.clone import CreateRequest, clone
from flettner.actuators.docker.compile_cache import predict_cache_state
from flettner.actuators.docker.dry_run import DryRunResult, dry_run
from flettner.actuators.docker.log_head import describe_start, measured_start, read_start_log
from flettner.actuators.docker.obstacles import find_obstacles
from flettner.actuators.docker.sleep import Sleeper
from flettner.actuators.docker.spec import ContainerSpec, Json
from flettner.actuators.vllm.outage import predict_outage
from flettner.actuators.vllm.start_times import StartTimes
from flettner.agent.domain.model import PreflightResult, Server, Strategy
from flettner.agent.domain.ports import Site
from flettner.agent.machine.strategy import StrategyChoice, choose_strategy
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.values import Setting

_ANY_PORT = 8000  # for the network of the host: the port is chosen at the start


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The arguments. `blues` are in the order of `servers`; green is made like the last one."""

    client: DockerClient
    site: Site
    blues: Sequence[ContainerSpec]
    servers: Sequence[Server]
    setting: Setting
    times: StartTimes
    sleeper: Sleeper

    @property
    def pattern(self) -> ContainerSpec:
        return self.blues[-1]


async def preflight(
    client: DockerClient,
    site: Site,
    blues: Sequence[ContainerSpec],
    servers: Sequence[Server],
    setting: Setting,
    wanted: Strategy | Literal["auto"],
    times: StartTimes,
    sleeper: Sleeper,
) -> PreflightResult:
    """`blues`: the containers of `servers`, in their order.

    Raises ActError when the Engine, or the image's own vLLM, cannot be asked.
    """
    asked = _Asked(
        client=client, site=site, blues=blues, servers=servers, setting=setting, times=times, sleeper=sleeper
    )
    if problem := await _first_obstacle(asked):
        return PreflightResult(problem=problem)
    try:
        specs = [_candidate(blue, setting) for blue in blues]
    except FlagError as error:
        return PreflightResult(problem=str(error), lasting=True)
    choice, problem = await _choose_strategy(asked, wanted)
    if problem:
        return PreflightResult(problem=problem, lasting=True)
    if choice.strategy is None:
        return PreflightResult(problem=choice.why)
    if choice.strategy != "surge" and (unkept := _auto_removed(blues)):
        return PreflightResult(problem=unkept)
    checked = await _dry_run(asked, specs[-1])
    if problem := _dry_run_problem(checked):
        return PreflightResult(problem=problem, lasting=True)
    found = await _predict(asked, choice.strategy, choice.why, checked, specs[-1].notes)
    return replace(found, unchecked=not site.acts)


async def _dry_run(asked: _Asked, candidate: CreateRequest) -> DryRunResult:
    if not asked.site.acts:
        return DryRunResult(why="advise mode starts no container to check them with vLLM")
    commands = [asked.pattern.serve.argv, candidate.argv]
    return await dry_run(asked.client, asked.site, asked.pattern, commands)


def _auto_removed(blues: Sequence[ContainerSpec]) -> str:
    """Return why these containers cannot be swapped out and in again, with the fix; empty: they can."""
    names = [blue.name for blue in blues if blue.auto_remove]
    if not names:
        return ""
    return (
        f"{', '.join(names)} must stop for the new server, and --rm removes a container that stops: "
        "start it without --rm"
    )


def start_key(blue: ContainerSpec, setting: Setting) -> str:
    """Return the key of StartTimes: starts of the same image and model take about as long."""
    return f"{blue.image} {setting.get('model', '')}"


async def _first_obstacle(asked: _Asked) -> str:
    """Return why no like container can be made of one of them, with the fix; empty: it can."""
    images: dict[str, Json | None] = {}
    for blue in asked.blues:
        if blue.image not in images:
            images[blue.image] = await asked.client.image(blue.image)
        if found := find_obstacles(blue, images[blue.image]):
            return f"{blue.name} cannot be made again: {'; '.join(found)}"
    return ""


def _candidate(blue: ContainerSpec, setting: Setting) -> CreateRequest:
    """Return the like container with this setting, without creating it. Raises FlagError."""
    port = _ANY_PORT if blue.network_mode == "host" else None
    return clone(blue, name="green", labels={}, setting=setting, port=port)


async def _choose_strategy(asked: _Asked, wanted: Strategy | Literal["auto"]) -> tuple[StrategyChoice, str]:
    """Return the strategy, and why no host like this can run the setting; empty: it can."""
    engine = asked.client.host or os.environ.get("DOCKER_HOST", "")
    host = await capacity.measure_host(engine, asked.blues)
    for blue in asked.blues:
        if problem := capacity.gpu_shortage(blue, asked.setting, host):
            return StrategyChoice(strategy=None, why=problem), problem
    held = [
        await capacity.measure_holding(blue, asked.client, server.setting)
        for blue, server in zip(asked.blues, asked.servers, strict=True)
    ]
    return choose_strategy(wanted, len(asked.servers), capacity.free_capacity(held, asked.setting, host)), ""


def _dry_run_problem(checked: DryRunResult) -> str:
    """Return the error of vLLM for the candidate; empty if the running command fails with it, too."""
    if checked.why:
        return ""
    now, then = checked.answers
    if then.ok or not (now.ok or (then.kind == "usage" and now.kind != "usage")):
        return ""
    return f"vLLM {checked.version} rejects it: {then.error}"


async def _predict(
    asked: _Asked, strategy: Strategy, why: str, checked: DryRunResult, differs: Sequence[str]
) -> PreflightResult:
    key = start_key(asked.pattern, asked.servers[-1].setting)
    begins = predict_cache_state(asked.pattern, checked)
    asked.times.foresee(key, asked.setting, begins.warm)
    start_s, note = await _predict_start(asked, key, begins.warm)
    notes = [
        *begins.notes,
        note,
        *describe_start(await read_start_log(asked.client, asked.pattern)),
        *differs,
    ]
    outage_s = 0.0
    if strategy == "swap":
        verdict = await asked.sleeper.judge(asked.pattern)
        outage_s, parts = predict_outage(asked.times, key, asked.servers[-1].name, verdict, start_s)
        notes = [*parts, *notes]
    return PreflightResult(
        strategy=strategy,
        why=why,
        start_s=start_s,
        deadline_s=asked.times.learned(key, begins.warm),
        outage_s=outage_s,
        notes=tuple(notes),
    )


async def _predict_start(asked: _Asked, key: str, warm: bool | None) -> tuple[float | None, str]:
    """Return the expected seconds from the best data there is, and a note on it."""
    kind = {True: "a warm start", False: "a cold start", None: "a start"}[warm]
    if alike := asked.times.expected(key, warm):
        return alike, f"{kind}: about {alike:.0f} s, as measured for the last ones"
    if other := asked.times.expected(key, None):
        return other, f"{kind}: about {other:.0f} s, measured for starts of another kind"
    if seen := await measured_start(asked.client, asked.pattern):
        return seen, f"{kind}: about {seen:.0f} s, as measured for the running server"
    return None, f"{kind}: no start of this image and model was measured yet"
