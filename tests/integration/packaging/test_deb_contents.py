"""The files of the Debian package, without an installation."""

import subprocess

import pytest

from tests.integration.systemd.conftest import build
from tests.integration.systemd.machine import REPOSITORY

DOCUMENTS = "./usr/share/doc/flettner/"


@pytest.mark.timeout(300)
def test_the_package_contains_commands_units_and_documents() -> None:
    listing = subprocess.run(
        ["dpkg-deb", "--contents", build()], capture_output=True, text=True, check=True
    ).stdout
    files = {line.split(maxsplit=5)[5].split(" -> ")[0] for line in listing.splitlines()}
    deploy = {
        f"{DOCUMENTS}{path.relative_to(REPOSITORY)}"
        for path in (REPOSITORY / "deploy").rglob("*")
        if path.is_file()
    }
    docs = {
        f"{DOCUMENTS}{path.relative_to(REPOSITORY / 'docs')}" for path in (REPOSITORY / "docs").rglob("*.md")
    }
    units = {f"./usr/lib/systemd/system/{path.name}" for path in (REPOSITORY / "systemd").glob("*.service")}

    assert all((deploy, docs, units))
    wanted = deploy | docs | units | {"./usr/bin/flettner", "./usr/bin/flettner-docker-proxy"}
    assert wanted - files == set()
