"""The container image, built from the Debian of the tests without a registry."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import docker
import pytest
from docker.errors import NotFound

from tests.integration.systemd.conftest import build
from tests.integration.systemd.machine import DEBIAN, REPOSITORY

BASE, IMAGE = "flettner-test-debian", "flettner-test-image"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def engine() -> Iterator[docker.APIClient]:
    engine = docker.APIClient(version="auto", timeout=120)
    yield engine
    for name in (IMAGE, BASE):
        with suppress(NotFound):
            engine.remove_image(name, force=True)
    engine.close()


def test_the_image_runs_as_a_dedicated_user(engine: docker.APIClient, tmp_path: Path) -> None:
    engine.ping()
    package = shutil.copy(build(), tmp_path)
    with subprocess.Popen(["tar", "-c", "-C", str(DEBIAN), "."], stdout=subprocess.PIPE) as packed:
        subprocess.run(["docker", "import", "-", BASE], stdin=packed.stdout, check=True, capture_output=True)
    recipe = REPOSITORY / "packaging" / "Containerfile"
    built = subprocess.run(
        [
            *("docker", "build", "-f", str(recipe), "--build-arg", f"BASE={BASE}", "-t", IMAGE),
            *("--build-arg", f"PACKAGE={Path(package).name}", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr

    def run(*words: str, entry: str = "/opt/flettner/bin/flettner") -> str:
        command = ["docker", "run", "--rm", "--network=none", "--read-only", "--entrypoint", entry, IMAGE]
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    assert run("--version").startswith("flettner ")
    assert run("-u", entry="id").strip() == "980"
    assert "cannot be read" in run("run", "-c", "/etc/flettner/flettner.toml")
