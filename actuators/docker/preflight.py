"""What would come of a change to containers: said before one is touched, with the reasons and the times."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from actuators.docker import capacity, start_history
from actuators.docker.client import DockerClient
from actuators.docker.clone import CreateRequest, clone
from actuators.docker.obstacles import obstacles
from actuators.docker.spec import ContainerSpec, Json
from actuators.vllm.compile_cache import predict_cache_state
from actuators.vllm.dry_run import DryRunResult, dry_run
from actuators.vllm.start_times import StartTimes
from agent.domain.model import PreflightResult, Server, Strategy
from agent.domain.ports import Site
from agent.machine.strategy import Choice, choose_strategy
from vllm_facts.errors import FlagError
from vllm_facts.values import Setting

_STOP_S = 10.0  # SIGTERM to a drained vLLM, until its GPU memory is free
_ANY_PORT = 8000  # one in the host's network needs a port, which is chosen when it starts
_START_S = 300.0  # assumed where no start was ever seen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The question, and the containers in the same order as the servers; green is made like the last."""

    client: DockerClient
    site: Site
    blues: Sequence[ContainerSpec]
    servers: Sequence[Server]
    setting: Setting
    times: StartTimes

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
) -> PreflightResult:
    """`blues`: what the Engine says of the containers of `servers`, in their order.

    Raises ActError when the Engine, or the image's own vLLM, cannot be asked.
    """
    asked = _Asked(client=client, site=site, blues=blues, servers=servers, setting=setting, times=times)
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
    checked = await dry_run(client, site, asked.pattern, [asked.pattern.serve.argv, specs[-1].argv])
    if problem := _dry_run_problem(checked):
        return PreflightResult(problem=problem, lasting=True)
    return await _predict(asked, choice.strategy, choice.why, checked, specs[-1].notes)


def _auto_removed(blues: Sequence[ContainerSpec]) -> str:
    """Who would be gone for good where it gives its place, with the fix; empty when nobody would."""
    names = [blue.name for blue in blues if blue.auto_remove]
    if not names:
        return ""
    return (
        f"{', '.join(names)} must give its place, and a container started with --rm is gone when it stops: "
        "start it without --rm"
    )


def start_key(blue: ContainerSpec, setting: Setting) -> str:
    """What starts alike: image and model. The key of StartTimes."""
    return f"{blue.image} {setting.get('model', '')}"


async def _first_obstacle(asked: _Asked) -> str:
    """Why no like container can be made of one of them, with the fix."""
    images: dict[str, Json | None] = {}
    for blue in asked.blues:
        if blue.image not in images:
            images[blue.image] = await asked.client.image(blue.image)
        if found := obstacles(blue, images[blue.image]):
            return f"{blue.name} cannot be made again: {'; '.join(found)}"
    return ""


def _candidate(blue: ContainerSpec, setting: Setting) -> CreateRequest:
    """Of the like container with this setting; it is not made. Raises FlagError."""
    port = _ANY_PORT if blue.network_mode == "host" else None
    return clone(blue, name="green", labels={}, setting=setting, port=port)


async def _choose_strategy(asked: _Asked, wanted: Strategy | Literal["auto"]) -> tuple[Choice, str]:
    """The strategy; or why the setting itself can have no place."""
    engine = asked.client.host or os.environ.get("DOCKER_HOST", "")
    host = await capacity.measure_host(engine, asked.blues)
    for blue in asked.blues:
        if problem := capacity.gpu_shortage(blue, asked.setting, host):
            return Choice(strategy=None, why=problem), problem
    held = [
        await capacity.measure_holding(blue, asked.client, server.setting)
        for blue, server in zip(asked.blues, asked.servers, strict=True)
    ]
    return choose_strategy(wanted, len(asked.servers), capacity.free_capacity(held, asked.setting, host)), ""


def _dry_run_problem(checked: DryRunResult) -> str:
    """What vLLM itself says against the candidate; when the running command fails too, it proves little."""
    if checked.why:
        return ""
    now, then = checked.answers
    if then.ok or not (now.ok or (then.kind == "usage" and now.kind != "usage")):
        return ""
    return f"vLLM {checked.version} does not take it: {then.error}"


async def _predict(
    asked: _Asked, strategy: Strategy, why: str, checked: DryRunResult, differs: Sequence[str]
) -> PreflightResult:
    key = start_key(asked.pattern, asked.servers[-1].setting)
    begins = predict_cache_state(asked.pattern, checked)
    asked.times.foresee(key, asked.setting, begins.warm)
    start_s, told = await _predict_start(asked, key, begins.warm)
    notes = [*begins.notes, told, *differs]
    outage_s = 0.0
    if strategy == "swap":
        stop_s = asked.times.expected_stop(key) or _STOP_S
        outage_s = stop_s + (start_s or _START_S)
        assumed = "" if start_s else " (assumed)"
        parts = f"{stop_s:.0f} s to stop, {start_s or _START_S:.0f} s to start{assumed}"
        notes.insert(0, f"a planned outage of about {outage_s:.0f} s: {parts}")
    return PreflightResult(
        strategy=strategy,
        why=why,
        start_s=start_s,
        deadline_s=asked.times.learned(key, begins.warm),
        outage_s=outage_s,
        notes=tuple(notes),
    )


async def _predict_start(asked: _Asked, key: str, warm: bool | None) -> tuple[float | None, str]:
    """How long it should take, from the best that is known; and how that is told."""
    kind = {True: "a warm start", False: "a cold start", None: "a start"}[warm]
    if alike := asked.times.expected(key, warm):
        return alike, f"{kind}: about {alike:.0f} s, as the last ones took"
    if other := asked.times.expected(key, None):
        return other, f"{kind}: about {other:.0f} s, though the last ones were of another kind"
    if seen := await start_history.start_of(asked.client, asked.pattern):
        return seen, f"{kind}: about {seen:.0f} s, as the server that runs took"
    return None, f"{kind}: none of this image and model was measured yet"
