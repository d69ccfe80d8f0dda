"""How much of an image is here while it is pulled, as the Engine's stream of progress has it."""

from collections.abc import Iterator
from threading import Event
from typing import Any, cast

import docker
import pytest

from flettner.actuators.docker.client import _pull
from flettner.agent.domain.errors import ActError

REF = "vllm/vllm-openai:v0.33.0"


def loading(layer: str, current: float, total: float, status: str = "Downloading") -> dict[str, Any]:
    detail = {"current": int(current * 1e9), "total": int(total * 1e9)}
    return {"id": layer, "status": status, "progressDetail": detail}


class Api:
    """An Engine with these lines of progress."""

    timeout = 0.0

    def __init__(self, *lines: dict[str, Any]) -> None:
        self.lines = lines

    def pull(self, repository: str, **options: object) -> Iterator[dict[str, Any]]:
        assert (repository, options["tag"]) == ("vllm/vllm-openai", "v0.33.0")
        yield from self.lines


def said(*lines: dict[str, Any]) -> list[str]:
    reports: list[str] = []
    _pull(cast("docker.APIClient", Api(*lines)), REF, Event(), reports.append)
    return reports


def test_the_loaded_part_of_all_layers_is_said() -> None:
    reports = said(
        {"status": "Pulling from vllm/vllm-openai", "id": "v0.33.0"},
        {"status": "Pulling fs layer", "id": "a", "progressDetail": {}},
        loading("a", 0.5, 8.0),
        loading("b", 1.0, 2.0),
        {"status": "Download complete", "id": "b"},
        {"status": "Download complete", "id": "a"},
        loading("a", 1.0, 8.0, "Extracting"),
    )

    assert reports == [
        f"pulls {REF}: 0.5 of 8.0 GB",
        f"pulls {REF}: 1.5 of 10.0 GB",
        f"pulls {REF}: 2.5 of 10.0 GB",
        f"unpacks {REF}, 10.0 GB",
        f"unpacks {REF}, 10.0 GB",
    ]


def test_an_image_that_is_here_has_no_progress_and_a_failure_ends_the_pull() -> None:
    assert said({"status": "Status: Image is up to date"}) == []
    with pytest.raises(ActError, match="no basic auth credentials"):
        said(loading("a", 0.5, 8.0), {"error": "no basic auth credentials"})
