"""The steps with which an operator leaves flettner after its containers."""

from dataclasses import replace

from flettner.actuators.docker.container import Container
from flettner.actuators.docker.way_back import describe_way_back
from tests.support.docker_documents import container


def test_the_way_back_names_flags_name_port_and_what_to_remove() -> None:
    former = replace(
        Container.parse(container("m", "--max-num-seqs", "4")), server="vllm", published=("8000",), gone=True
    )
    green = Container.parse(container("m", "--max-num-seqs", "16"))
    state = replace(green.state, status="running")
    green = replace(green, name="flettner-chat-r1", server="chat-r1", ours=True, like="vllm", state=state)

    first, second, third = describe_way_back([former, green], "vllm")

    assert first.startswith("start your container vllm of vllm/vllm-openai:latest")
    assert "publishing 8000 again: vllm serve m --max-num-seqs 16" in first
    assert "point the clients at it" in second
    assert third == "then remove chat-r1: docker rm -f flettner-chat-r1"


def test_nothing_is_to_do_while_the_operators_own_container_serves() -> None:
    assert describe_way_back([Container.parse(container("m"))], "vllm") == []
