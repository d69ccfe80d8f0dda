"""One real vLLM whose limits change between measurements, by the control endpoint of flettner's scheduler."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.iteration_log import StepRecord, parse_iterations
from flettner.primitives.sockets import find_free_port
from flettner.tools.tuning.own_server import OwnServer
from flettner.vllm_facts.live_limits import CONTROL, SCHEDULER_CLASS
from flettner.vllm_facts.metrics.page_totals import PageTotals
from flettner.vllm_facts.metrics.totals import totals
from flettner.vllm_facts.shell_command.serve_command import ServeCommand
from tests.support.real_vllm import ENVIRONMENT, REPOSITORY, real_vllm

SLOTS, BUDGET = 64, 2048  # of the start; the endpoint only lowers them
START_S = 900.0
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
"""The worker runs in the engine's process, as on one GPU. vLLM's default on a CPU is two processes that wait
for each other in busy loops: on two cores API server and client then ran 15 % of the time that they wanted
to, and the default, measured twice, differed by 16 points."""
IDLE_S = 0.5


@dataclass(slots=True, kw_only=True)
class RealServer:
    """`log`: of the server, with a line for each step."""

    url: str
    log: Path
    control: Path
    number: int = field(default=0, init=False)

    async def set_limits(self, values: Mapping[str, int]) -> None:
        """Set these limits until the next call; all others are those of the start."""
        self.number += 1
        document = {"number": [1, self.number], "values": dict(values), "lease_s": None}
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self.control))) as session,
            session.put("http://engine/knobs", json=document) as answer,
        ):
            answer.raise_for_status()

    async def limits(self) -> EngineLimits:
        """The limits of the start, by vLLM's own metrics."""
        facts = (await self.page()).facts
        return EngineLimits(
            kv_blocks=int(facts["num_gpu_blocks"]),
            block_size=int(facts["block_size"]),
            max_num_seqs=SLOTS,
            max_num_batched_tokens=BUDGET,
            max_model_len=2048,
        )

    async def page(self) -> PageTotals:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as answer:
            return totals(await answer.read())

    async def steps(self) -> list[StepRecord]:
        """Return all steps so far; the engine is idle."""
        await asyncio.sleep(IDLE_S)
        with self.log.open(encoding="utf-8", errors="replace") as lines:
            return list(parse_iterations(lines))


@asynccontextmanager
async def running() -> AsyncIterator[RealServer]:
    """Start vLLM with a tiny model; it has ended at the exit."""
    with TemporaryDirectory(prefix="fl") as home:
        port = find_free_port(host="127.0.0.1")
        argv = real_vllm().command(
            *("--host", "127.0.0.1", "--port", str(port), "--max-num-seqs", str(SLOTS)),
            *("--max-num-batched-tokens", str(BUDGET), "--enable-logging-iteration-details"),
            *("--no-enable-prefix-caching", "--scheduler-cls", SCHEDULER_CLASS),
            *("--distributed-executor-backend", "uni"),
        )
        control = Path(home, "control.sock")
        env = {**ENVIRONMENT, **ONE_PROCESS, "PYTHONPATH": str(REPOSITORY), CONTROL: str(control)}
        server = OwnServer(command=ServeCommand(argv=argv, env=env), start_s=START_S)
        log = Path(home, "server.log")
        try:
            await server.start(server.command, log)
            yield RealServer(url=server.url, log=log, control=control)
        finally:
            await server.stop()
