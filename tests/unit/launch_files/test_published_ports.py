"""The ports that `docker run` publishes."""

import shlex

import pytest

from flettner.vllm_facts.shell_command.serve_command import parse_command


@pytest.mark.parametrize(
    ("options", "ports"),
    [
        ("-p 80:9000", (9000,)),
        ("--publish=127.0.0.1:80:9000/tcp -p 8000", (9000, 8000)),
        ("-p '[::1]:80:9000' --network shared", (9000,)),
        ("-p 80:9000 --network=host", ()),
        ("-p 8000-8003:8000-8003", ()),
        ("-P", ()),
        ("", ()),
    ],
)
def test_the_ports_of_a_container_are_known_by_its_options(options: str, ports: tuple[int, ...]) -> None:
    words = shlex.split(f"docker run {options} vllm/vllm-openai:v0.30.0 org/m")
    container = parse_command(words).container

    assert container is not None
    assert container.asked_ports == ports


def test_a_command_without_a_container_has_none() -> None:
    assert parse_command(["vllm", "serve", "org/m"]).container is None
