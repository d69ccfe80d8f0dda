"""Names and labels that the API server accepts, whatever the target and the Deployment are called."""

import re
from pathlib import Path

import pytest

from flettner.actuators.kubernetes.labels import object_name, server_labels
from flettner.agent.domain.ports import Site

NAMES = ["vllm", "vllm.v1", "x" * 100, "-a", "Chat", "t" * 63 + "-r1", "t" * 63 + "-r2", "..."]


@pytest.mark.parametrize("name", NAMES)
def test_are_valid(name: str) -> None:
    site = Site(target=name, state_dir=Path("/state"), epoch=1)

    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", object_name(site, name))
    for label in server_labels(site, name).values():
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", label)


def test_stay_apart() -> None:
    site = Site(target="chat", state_dir=Path("/state"), epoch=1)

    assert len({object_name(site, name) for name in NAMES}) == len(NAMES)
    assert object_name(site, "chat-r1").startswith("flettner-chat-r1-")
