"""Let the server of a container sleep instead of ending it, and wake it again.

Its record says that it sleeps before it does, so that a daemon that starts meanwhile gives it no traffic.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from flettner.actuators.docker import capacity
from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.container import Container
from flettner.actuators.docker.lifecycle import Lifecycle
from flettner.actuators.docker.log_head import read_start_log
from flettner.actuators.host.memory import Host, expected_memory
from flettner.actuators.vllm import sleep
from flettner.actuators.vllm.sleep import FREE_WITHIN_S, ServerMemory, Sleepable, SleepMode, SleepVerdict
from flettner.agent.domain.errors import ActError

Measure = Callable[[DockerClient, Container], Awaitable[Host]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleeper:
    lifecycle: Lifecycle
    measure: Measure = capacity.measure_for
    free_within_s: float = FREE_WITHIN_S

    async def judge(self, container: Container) -> SleepVerdict:
        return await sleep.judge(self._sleepable(container))

    async def put_to_sleep(self, container: Container) -> str:
        """Return how much memory is free then. Raises ActError if it does not sleep or frees too little."""
        registry = self.lifecycle.registry

        async def prepare() -> None:
            await registry.keep(container)
            since, epoch = container.state.started_at, registry.site.epoch
            registry.update(container.server, stopped=True, asleep_since=since, epoch=epoch)
            await self.lifecycle.disable_restarts(container)

        return await sleep.put_to_sleep(
            self._sleepable(container), prepare, asleep=container.asleep, free_within_s=self.free_within_s
        )

    async def wake(self, container: Container) -> bool:
        """Wake it, and return whether it slept.

        Raises ActError if it ended or does not wake; the next launch starts it.
        """
        server, client, registry = container.server, self.lifecycle.client, self.lifecycle.registry
        if not container.asleep_since:
            return False
        if not container.active:
            registry.update(server, asleep_since="")
            log = await client.read_log_if_possible(container)
            raise ActError(f"{server} ended while it slept: it is started instead", log)
        try:
            if container.asleep:  # else a third party has started it again
                await SleepMode(container.address).wake()
        except ActError as error:
            await self.lifecycle.end(container, 0)
            log = await client.read_log_if_possible(container)  # whole, once it has ended
            registry.update(server, asleep_since="")
            raise ActError(f"{server} did not wake, and is started instead: {error.why}", log) from error
        registry.update(server, asleep_since="")
        return container.asleep

    def _sleepable(self, container: Container) -> Sleepable:
        client = self.lifecycle.client
        return Sleepable(
            address=container.address,
            setting=container.serve.setting,
            env=container.env,
            host=partial(self.measure, client, container),
            memory=partial(_measure_memory, client, container),
            start_log=partial(read_start_log, client, container),
        )


async def _measure_memory(client: DockerClient, container: Container) -> ServerMemory | None:
    limit = container.memory_limit
    try:
        held = await client.memory(container.id)
    except ActError:
        return None
    if held is None:
        return None
    return ServerMemory(room=limit - held if limit else None, next=expected_memory(limit, held))
