"""One machine with trimtab's package installed for all tests of the service; a site for each."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.system.wishes import Wishes
from tests.systemd.machine import REPOSITORY, Machine
from tests.systemd.service import Service, Start

NEXT = "99.0"


def build(version: str = "") -> Path:
    """The Debian package, not compressed."""
    done = subprocess.run(
        [str(REPOSITORY / "packaging" / "build-deb"), *([version] if version else [])],
        env={**os.environ, "DPKG_DEB_COMPRESSOR_TYPE": "none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return REPOSITORY / done.stdout.split()[-1]


@pytest.fixture(scope="session")
def package() -> Path:
    return build()


@pytest.fixture(scope="session")
def next_package() -> Path:
    """The same trimtab, called newer."""
    return build(NEXT)


@pytest.fixture(scope="module")
def machine(package: Path) -> Iterator[Machine]:
    with Machine() as machine:
        machine.install(package)
        yield machine


@pytest.fixture
async def service(machine: Machine, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts the service over a site as wished; after the test nothing of it is left."""
    made: list[Service] = []

    async def start(wishes: Wishes, /, *, bare_metal: bool = True) -> Service:
        rig = Service(home=tmp_path, wishes=wishes, machine=machine, bare_metal=bare_metal)
        made.append(rig)
        rig.prepare()
        machine.run("systemctl", "start", "trimtab")
        return rig

    yield start
    for rig in made:
        await rig.tear_down()
