"""Which tests are of which kind; how hypothesis works on a machine that others use too: without deadlines."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("trimtab", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("trimtab")

DOCKER = {
    "docker.api.client",
    "docker.errors",
    "tests.support.docker_site",
    "tests.support.docker_images",
    "tests.support.docker_engine_rig",
}
SITES = Path(__file__).parent / "e2e"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what cannot run beside other things: those that use the Docker Engine, and whole sites."""
    for item in items:
        names = vars(getattr(item, "module", None) or object).values()
        used = {getattr(name, "__module__", None) for name in names}
        if used & DOCKER:
            item.add_marker("real_docker")
        if "tests.support.own_dockerd" in used:
            item.add_marker("own_engine")
        if SITES in item.path.parents:
            item.add_marker("site")
