"""`flettner init` with running servers, as processes and as containers."""

import asyncio
import os
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flettner.actuators.host import procfs
from flettner.actuators.process import adopted
from flettner.agent.config.loader import load_config
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.model import Server
from flettner.agent.runtime.host_check import find_problems
from flettner.tools.advisor.local_servers import find_servers
from flettner.tools.cli.dispatch import main
from flettner.tools.cli.init import config_text, write_config
from flettner.vllm_facts.flag_parser import is_vllm_server
from tests.e2e.test_adopting import _answers
from tests.support.api_tokens import store_roles
from tests.support.docker_site import Bench
from tests.support.ports import free_port
from tests.support.rig import until

VLLM = f"""#!{sys.executable}
import runpy, sys
_, serve, model, *flags = sys.argv
sys.argv = ["server", "--model", model, *flags, "--sim-start-s", "0.1"]
runpy.run_module("flettner.simulator.server", run_name="__main__")
"""
SERVER = Server(name="vllm", setting={"model": "Qwen/Qwen3-8B"}, address="127.0.0.1:8000", ours=False)


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """A third-party `vllm serve`."""
    program = tmp_path / "vllm"
    program.write_text(VLLM)
    program.chmod(0o755)
    port = free_port()
    words = [str(program), "serve", "acme/Tiny_1B", "--port", str(port), "--max-num-seqs", "8"]
    process = subprocess.Popen(words, cwd=Path(__file__).parents[3], stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    await until(lambda: _answers(url), bool, "the server to answer")
    yield url
    process.kill()
    process.wait()


async def test_finds_a_process_and_writes_a_working_config(url: str, tmp_path: Path) -> None:
    servers, _ = await find_servers()
    mine = [server for server in servers if server[1].address in url]
    path = tmp_path / "flettner.toml"

    write_config(path, config_text(path, mine))
    store_roles(tmp_path / "tokens", principal="alice")
    config = load_config(path)

    assert [target.name for target in config.targets] == ["tiny-1b"]
    assert dict(config.targets[0].engine.options) == {"serving": url}
    assert config.mode == "advise"
    assert await find_problems(config) == []


async def test_finds_a_container_once_although_its_process_is_visible(tmp_path: Path) -> None:
    async with Bench() as bench:
        container = await bench.run()
        servers, blind = await find_servers()
        mine = [(kind, server, options) for kind, server, options in servers if server.name == container.name]
        path = tmp_path / "flettner.toml"
        write_config(path, config_text(path, mine))
        config = load_config(path)

    assert blind == []
    assert [(kind, server.address) for kind, server, _ in mine] == [("docker", container.address)]
    assert container.address not in {server.address for kind, server, _ in servers if kind == "process"}
    assert config.targets[0].engine.name == "docker"
    assert tuple(config.targets[0].engine.options["containers"]) == (container.name,)


def test_does_not_overwrite_an_existing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "flettner.toml"
    path.write_text("# mine\n")

    assert main(("init", str(path))) == 2
    assert "is left unchanged" in capsys.readouterr().err
    assert path.read_text() == "# mine\n"


def test_leaves_no_invalid_config_behind(tmp_path: Path) -> None:
    path = tmp_path / "flettner.toml"

    with pytest.raises(ConfigError):
        write_config(path, "[[targets]]\nname = 3\n")

    assert not path.exists()


def test_two_servers_of_one_model_get_distinct_names_and_ports(tmp_path: Path) -> None:
    path = tmp_path / "flettner.toml"
    servers = [("docker", SERVER, {"containers": ["a"]}), ("docker", SERVER, {"containers": ["b"]})]

    write_config(path, config_text(path, servers))
    first, second = load_config(path).targets

    assert (first.name, second.name) == ("qwen3-8b", "qwen3-8b-2")
    assert first.listen != second.listen


def test_the_config_of_the_service_leaves_its_paths_to_the_unit() -> None:
    text = config_text(Path("/etc/flettner/flettner.toml"), [("docker", SERVER, {"containers": ["vllm"]})])
    document = tomllib.loads(text)

    assert document["agent"] == {"mode": "advise"}
    assert document["api"] == {"tokens_file": "tokens"}


@pytest.mark.parametrize(
    ("words", "is_server"),
    [
        (["/opt/venv/bin/python3", "/opt/venv/bin/vllm", "serve", "m"], True),
        (["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"], True),
        (["vllm", "bench", "serve"], False),
        (["vim", "vllm", "serve.md"], False),
        (["grep", "vllm"], False),
        ([], False),
    ],
)
def test_recognises_a_server_by_its_command_line(words: list[str], is_server: bool) -> None:
    assert is_vllm_server(words) is is_server


@pytest.mark.parametrize(("owner", "hidden"), [(4_000_001, True), (os.geteuid(), False)])
def test_the_service_gets_the_command_of_a_server_of_another_user(
    monkeypatch: pytest.MonkeyPatch, owner: int, hidden: bool
) -> None:
    process, argv = procfs.process(os.getpid()), ["/opt/vllm", "serve", "acme/Tiny_1B", "--port", "8000"]
    monkeypatch.setattr(procfs, "processes", lambda: iter([process]))
    monkeypatch.setattr(procfs, "words", lambda _: argv)
    monkeypatch.setattr(procfs, "user_of", lambda _: {owner})
    monkeypatch.setattr(procfs, "listening_user", lambda _: owner)
    monkeypatch.setattr(adopted, "_is_contained", lambda _: False)

    found = [("process", *server) for server in asyncio.run(adopted.find_unmanaged_servers()).servers]
    of_service, of_a_user = (config_text(Path(f"{at}/t.toml"), found) for at in ("/etc/flettner", "/home/a"))

    assert tomllib.loads(of_service)["targets"][0]["engine"].get("command") == (argv if hidden else None)
    assert "command" not in tomllib.loads(of_a_user)["targets"][0]["engine"]
