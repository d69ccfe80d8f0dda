"""Files that a config names, and that are not there."""

from pathlib import Path

from flettner.agent.config.loader import parse_config
from flettner.agent.runtime.host_check import find_problems
from tests.support.ports import free_port

CONFIG = """
[agent]
state_dir = "state"
[api]
listen = "127.0.0.1:{port}"
[[targets]]
name = "chat"
[targets.engine]
kind = "process"
command = ["vllm", "serve", "m"]
[targets.git]
repository = "https://git.example.org/ops/serving.git"
path = "chat.service"
forge = "github"
project = "ops/serving"
token_file = "github.token"
"""


async def test_a_missing_token_of_a_forge_is_a_problem(tmp_path: Path) -> None:
    config = parse_config(CONFIG.format(port=free_port()), here=tmp_path)

    problems = await find_problems(config)

    token = tmp_path / "github.token"
    why = f"[targets.git] chat: token_file: {token}: cannot be read: No such file or directory"
    assert [problem for problem in problems if "git" in problem] == [why]
