"""The options of the process engine, and the problems it reports."""

import socket
from pathlib import Path
from typing import Any

import pytest

from flettner.actuators.process.plugin import ProcessPlugin
from flettner.agent.domain.errors import ActError
from tests.support.process_rig import SERVER, STUB, site


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "say what is served"),
        ({"serving": "https://127.0.0.1:8000"}, "serving must look like"),
        ({"serving": "127.0.0.1:8000"}, "serving must look like"),
        ({"serving": "http://127.0.0.1"}, "serving must look like"),
        ({"command": STUB, "ports": [9, 8]}, "ports must be"),
        ({"command": STUB, "ports": [8101]}, "ports must be"),
        ({"command": STUB, "ports": [8101, 70000]}, "ports must be"),
        ({"command": STUB, "stop_s": -1}, "stop_s"),
        ({"command": STUB, "health_every_s": 0}, "health_every_s"),
        ({"command": STUB, "health_timeout_s": 0}, "health_timeout_s"),
        ({"command": STUB, "lost_after": 0}, "lost_after"),
    ],
    ids=str,
)
def test_rejects_invalid_options(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ProcessPlugin(**options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"command": ["sh", "-c", "vllm serve m"]}, "starts a shell"),
        ({"command": [*STUB, "--ssl-certfile", "f"]}, "--ssl_certfile: only plain HTTP"),
        ({"command": STUB, "cwd": "/no/such/folder"}, "no folder '/no/such/folder'"),
    ],
    ids=["shell", "TLS", "folder"],
)
async def test_problems_state_the_remedy(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    [problem] = await ProcessPlugin(**options).bind(site(tmp_path)).problems()

    assert why in problem


async def test_occupied_ports_are_a_problem_and_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        engine = ProcessPlugin(command=STUB, ports=(port, port)).bind(site(tmp_path))

        [problem] = await engine.problems()
        with pytest.raises(ActError, match="none of"):
            await engine.launch(SERVER, 60)

    assert f"none of {port}..{port} is free" in problem
