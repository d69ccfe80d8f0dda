"""One machine with flettner's package installed for all tests of the service; a site for each."""

import os
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.integration.systemd.machine import REPOSITORY, Machine
from tests.integration.systemd.service import Service, Start
from tests.support.config_builder import SiteConfig

NEXT = "99.0"
QUICKLY = {"DPKG_DEB_COMPRESSOR_TYPE": "none"}


@cache
def build(python: str = "3.11") -> Path:
    """The Debian package for a system with this Python, not compressed."""
    done = subprocess.run(
        [str(REPOSITORY / "packaging" / "build-deb")],
        env={**os.environ, **QUICKLY, "PYTHON": python},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return REPOSITORY / done.stdout.split()[-1]


@cache
def build_next(python: str = "3.11") -> Path:
    """The same flettner with a higher version."""
    package = build(python)
    later = package.with_name(package.name.replace("flettner_", f"flettner_{NEXT}+"))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["dpkg-deb", "--raw-extract", package, folder], check=True)
        control = Path(folder, "DEBIAN", "control")
        control.write_text(re.sub("(?m)^Version: .*", f"Version: {NEXT}", control.read_text()))
        subprocess.run(
            ["dpkg-deb", "--build", folder, later],
            check=True,
            env={**os.environ, **QUICKLY},
            capture_output=True,
        )
    return later


@pytest.fixture(scope="session")
def package() -> Path:
    return build()


@pytest.fixture(scope="session")
def next_package() -> Path:
    return build_next()


@pytest.fixture(scope="module")
def machine(package: Path) -> Iterator[Machine]:
    with Machine() as machine:
        machine.install(package)
        yield machine


@pytest.fixture
async def service(machine: Machine, tmp_path: Path) -> AsyncIterator[Start]:
    """Start the service over the requested site; remove everything after the test."""
    made: list[Service] = []

    async def start(site_config: SiteConfig, /, *, bare_metal: bool = True) -> Service:
        rig = Service(home=tmp_path, site_config=site_config, machine=machine, bare_metal=bare_metal)
        made.append(rig)
        rig.prepare()
        try:
            machine.run("systemctl", "start", "flettner")
        except AssertionError as error:
            raise AssertionError(machine.run("journalctl", "--unit", "flettner", "--lines", "60")) from error
        return rig

    yield start
    for rig in made:
        await rig.tear_down()
