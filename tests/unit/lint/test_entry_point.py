"""A model that the server does not read where it stands."""

import pytest

from flettner.lint.rules import entry_point
from flettner.vllm_facts.serve_config import Container, EntryFault, Launcher
from flettner.vllm_facts.shell_command.serve_command import parse_command
from tests.support.lint_cases import case, findings

MODULE = "python3 -m vllm.entrypoints.openai.api_server"


def test_a_model_without_its_flag_is_named_with_it() -> None:
    (finding,) = findings(entry_point.LINTS, case(f"{MODULE} Qwen/Qwen3-8B", version="0.11.0"))

    assert finding.to["model"] == "Qwen/Qwen3-8B"


def test_a_flag_that_lacks_its_dashes_is_not_taken_for_the_name_of_a_model() -> None:
    (finding,) = findings(entry_point.LINTS, case(f"{MODULE} model", version="0.11.0"))

    assert (finding.severity, dict(finding.to)) == ("error", {})
    assert "--model and its value" in finding.expects


IMAGE = "vllm/vllm-openai:v0.30.0"


@pytest.mark.parametrize(
    ("command", "env", "image", "named"),
    [
        ("vllm serve", "MODEL_ID=org/m", IMAGE, "org/m"),
        ("vllm serve", "MODEL_ID=org/m", "registry/own:1", ""),  # its entrypoint may read it
        ("vllm serve org/n", "MODEL_ID=org/m", IMAGE, ""),
        ("vllm serve", "LOG=org/m", IMAGE, ""),
    ],
)
def test_a_model_in_a_variable_alone_becomes_a_flag(command: str, env: str, image: str, named: str) -> None:
    container = Container(launcher="compose", image=image)
    found = findings(entry_point.LINTS, case(command, env=env, container=container))

    assert [dict(finding.to) for finding in found if finding.to] == ([{"model": named}] if named else [])


@pytest.mark.parametrize(
    ("launcher", "partly_read", "severities"),
    [("compose", False, ["warning"]), ("Kubernetes", False, ["info"]), ("compose", True, [])],
)
def test_a_container_without_a_model_serves_the_default(
    launcher: Launcher, partly_read: bool, severities: list[str]
) -> None:
    container = Container(launcher=launcher, image=IMAGE, partly_read=partly_read)
    found = findings(entry_point.LINTS, case("vllm serve", container=container))

    assert [finding.severity for finding in found] == severities


def test_a_script_that_a_shell_does_not_run_to_its_end_is_told() -> None:
    fault = EntryFault("line 4 begins with `&`", of="line")
    (finding,) = findings(entry_point.LINTS, case("vllm serve m", entry_fault=fault))

    assert finding.severity == "error"
    assert "at the end of that line" in finding.expects


@pytest.mark.parametrize(
    ("command", "version", "told"),
    [
        ("vllm serve org/m --port 8001 --model=org/n", "0.32.0", True),
        ("vllm serve --model org/m org/m", "0.9.0", True),
        ("vllm serve org/m --model org/n", "0.6.1", False),  # --model is not read there
        ("vllm serve $ARGS --model org/n", "0.32.0", False),  # which may be empty
        ("vllm serve --model org/n", "0.32.0", False),
        ("vllm serve org/m --tokenizer org/n", "0.32.0", False),
    ],
)
def test_a_model_that_is_named_twice_is_told(command: str, version: str, *, told: bool) -> None:
    fault = parse_command(command.split()).entry_fault
    found = findings(entry_point.LINTS, case(command, version=version, entry_fault=fault))

    assert [finding.severity for finding in found] == (["error"] if told else [])


def test_the_module_ignores_a_name_beside_its_model() -> None:
    assert parse_command(f"{MODULE} org/m --model org/n".split()).entry_fault is None
