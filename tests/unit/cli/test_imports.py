"""A command imports only what it needs: the parts of the daemon would take seconds of CPU."""

import json
import subprocess
import sys

import pytest

CALLS = (
    ("--version",),
    ("status",),
    ("suggestions", "--status", "open"),
    ("approve", "chat-s1"),
    ("deny", "chat-s1", "--reason", "no"),
    ("propose", "chat", "max_num_seqs=8", "--reason", "try"),
    ("abort", "chat"),
    ("pause", "chat"),
    ("resume", "chat"),
    ("rollouts",),
    ("top",),
    ("ids", "status"),
)
OWN = {f"flettner.{name}" for name in ("agent", "primitives", "tools", "vllm_facts")}
"""What a client needs of flettner."""
NOT_OF_OWN = (
    "flettner.agent.domain.state",
    "flettner.agent.machine",
    "flettner.agent.runtime",
    "flettner.agent.config",
    "flettner.agent.plugins",
)
SCRIPT = """
import json, sys
from flettner.tools.cli.dispatch import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(json.dumps(sorted(set(sys.modules) - {"__main__"})))
"""


def imported(*words: str) -> list[str]:
    """Return the modules that a command imports while no daemon answers, without those of `site`."""
    nowhere = {"FLETTNER_URL": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import sys; sys.path[:0] = " + repr(sys.path) + SCRIPT, *words],
        capture_output=True,
        text=True,
        check=True,
        env=nowhere,
    )
    modules: list[str] = json.loads(done.stdout.splitlines()[-1])
    return modules


@pytest.mark.parametrize("words", CALLS, ids=lambda words: words[0])
def test_a_call_of_the_daemon_imports_no_library_and_no_part_of_the_daemon(words: tuple[str, ...]) -> None:
    modules = imported(*words)

    packages = {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names)
    assert packages <= {"flettner"}
    assert {".".join(name.split(".")[:2]) for name in modules if name.startswith("flettner.")} <= OWN
    assert [name for name in modules if name.startswith(NOT_OF_OWN)] == []
    assert "asyncio" not in modules


def test_only_a_proposal_needs_the_tables_of_flags() -> None:
    needs = {words[0] for words in CALLS if "flettner.vllm_facts.flag_parser" in imported(*words)}

    assert needs == {"propose"}


def test_lint_of_a_command_imports_no_library_of_the_daemon_and_no_parser_of_files() -> None:
    modules = imported("lint", "--", "vllm", "serve", "m")

    assert not {"aiohttp", "asyncio", "pydantic", "structlog", "docker", "yaml"} & set(modules)
    assert [name for name in modules if "launch_files" in name] == []
