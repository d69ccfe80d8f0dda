"""Let the server of a container sleep instead of ending it, and wake it again.

Its snapshot says that it sleeps before it does, so that a daemon that starts meanwhile gives it no traffic.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from flettner.actuators.docker import capacity, snapshots, stop
from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.discovery import FoundContainer
from flettner.actuators.docker.exit_diagnosis import read_log_if_possible
from flettner.actuators.docker.log_head import read_start_log
from flettner.actuators.docker.spec import ContainerSpec
from flettner.actuators.host.memory import Host, expected_memory
from flettner.actuators.vllm import sleep
from flettner.actuators.vllm.sleep import FREE_WITHIN_S, ServerMemory, SleepVerdict
from flettner.actuators.vllm.sleep_mode import SleepMode
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.ports import Site
from flettner.vllm_facts.values import Setting

Measure = Callable[[str, ContainerSpec], Awaitable[Host]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sleepable:
    client: DockerClient
    spec: ContainerSpec
    measure_for: Measure

    @property
    def address(self) -> str:
        return self.spec.address

    @property
    def setting(self) -> Setting:
        return self.spec.serve.setting

    @property
    def env(self) -> Mapping[str, str]:
        return self.spec.env

    async def measure(self) -> Host:
        return await self.measure_for(self.client.host, self.spec)

    async def memory(self) -> ServerMemory | None:
        limit = self.spec.memory_limit
        try:
            held = await self.client.memory(self.spec.id)
        except ActError:
            return None
        if held is None:
            return None
        return ServerMemory(room=limit - held if limit else None, next=expected_memory(limit, held))

    async def start_log(self) -> Sequence[bytes]:
        return await read_start_log(self.client, self.spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleeper:
    client: DockerClient
    site: Site
    measure: Measure = capacity.measure_for
    free_within_s: float = FREE_WITHIN_S

    async def judge(self, spec: ContainerSpec) -> SleepVerdict:
        return await sleep.judge(self._sleepable(spec))

    async def put_to_sleep(self, one: FoundContainer) -> str:
        """Return how much memory is free then. Raises ActError if it does not sleep or frees too little."""

        async def prepare() -> None:
            await stop.keep(self.client, self.site, one)
            snapshots.update(
                self.site, one.server, stopped=True, asleep=one.spec.state.started_at, epoch=self.site.epoch
            )
            await stop.disable_restarts(self.client, one)

        return await sleep.put_to_sleep(
            self._sleepable(one.spec), prepare, asleep=one.asleep, free_within_s=self.free_within_s
        )

    async def wake(self, one: FoundContainer) -> bool:
        """Wake it, and return whether it slept.

        Raises ActError if it ended or does not wake; the next launch starts it.
        """
        kept = snapshots.read_snapshot(self.site, one.server)
        if kept is None or not kept.asleep or kept.id != one.id:
            return False
        if not one.active:
            snapshots.update(self.site, one.server, asleep="")
            log = await read_log_if_possible(self.client, one.spec)
            raise ActError(f"{one.server} ended while it slept: it is started instead", log)
        try:
            if one.asleep:  # else a third party has started it again
                await SleepMode(one.spec.address).wake()
        except ActError as error:
            log = await read_log_if_possible(self.client, one.spec)
            await stop.end(self.client, one, 0)
            snapshots.update(self.site, one.server, asleep="")
            raise ActError(f"{one.server} did not wake, and is started instead: {error.why}", log) from error
        snapshots.update(self.site, one.server, asleep="")
        return one.asleep

    def _sleepable(self, spec: ContainerSpec) -> _Sleepable:
        return _Sleepable(client=self.client, spec=spec, measure_for=self.measure)
