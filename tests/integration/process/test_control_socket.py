"""Two adopted servers of two targets whose environments name the same control socket."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from structlog.testing import capture_logs

from flettner.actuators.process.engine import ProcessEngine
from flettner.actuators.process.plugin import ProcessPlugin
from flettner.actuators.vllm.probe import OpenAiProbe
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.ports import Site
from flettner.vllm_facts.live_limits import CONTROL, SCHEDULER_CLASS
from tests.support.ports import free_port
from tests.support.process_rig import free_ports

COMMAND = (
    *(sys.executable, "-m", "flettner.simulator.server", "--model", "tiny", "--sim-start-s", "0.2"),
    *("--max-num-seqs", "16", "--scheduler-cls", SCHEDULER_CLASS),
)


@asynccontextmanager
async def server(socket: Path) -> AsyncIterator[str]:
    """Yields its URL once it is healthy."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "--port", str(port)),
        env={**os.environ, CONTROL: str(socket)},
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    probe = OpenAiProbe(address=f"127.0.0.1:{port}")
    try:
        while (await probe.health()).why:
            await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


def adopting(target: str, url: str, folder: str) -> ProcessEngine:
    options = ProcessPlugin(serving=url, ports=free_ports())
    return options.bind(Site(target=target, state_dir=Path(folder, target), epoch=1))


async def test_only_the_server_that_listens_at_the_socket_has_hot_knobs() -> None:
    with TemporaryDirectory() as folder:  # pytest's own is longer than the path of a socket may be
        socket = Path(folder, "control.sock")
        async with server(socket) as first, server(socket) as second:
            chat, code = adopting("chat", first, folder), adopting("code", second, folder)
            [owner] = await chat.observe()
            with capture_logs() as logs:
                [other] = await code.observe()
            await chat.set_knobs(owner, {"max_num_active_seqs": 3}, (1, 1))
            with pytest.raises(ActError, match=r"code-r0 cannot be changed while it runs: .* listens at"):
                await code.set_knobs(other, {"max_num_active_seqs": 5}, (1, 2))
            [after] = await chat.observe()

    assert owner.hot is not None
    assert other.hot is None
    assert after.setting["max_num_active_seqs"] == 3
    assert [line["event"] for line in logs] == ["control.of_another_server"]
