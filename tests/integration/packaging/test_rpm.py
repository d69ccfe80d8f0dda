"""The rpm: its files, and what is left of it after a removal.

No RHEL and no Fedora can be had here. Its scripts run in an Ubuntu with the same programs, rpm and systemd.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.systemd.machine import CONFIG, REPOSITORY, Machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


SYSTEM = REPOSITORY / ".cache" / "noble" / "root"


def build(*version: str) -> Path:
    done = subprocess.run(
        [REPOSITORY / "packaging" / "build-rpm", *version],
        env={**os.environ, "RPM_PAYLOAD": "w.ufdio"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return REPOSITORY / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def package() -> Path:
    return build()


def rpm(*words: object) -> str:
    command = ["rpm", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def under(folder: str, pattern: str) -> set[str]:
    place = REPOSITORY / folder
    return {str(path.relative_to(place)) for path in place.rglob(pattern) if path.is_file()}


def test_the_package_contains_commands_units_and_documents(package: Path) -> None:
    files = set(rpm("-qlp", package).split())
    documents = "/usr/share/doc/flettner/"
    wanted = {f"{documents}{name}" for name in under("docs", "*.md")}
    wanted |= {f"{documents}deploy/{name}" for name in under("deploy", "*")}
    wanted |= {f"/usr/lib/systemd/system/{name}" for name in under("systemd", "*.service")}
    wanted |= {"/usr/bin/flettner", "/usr/bin/flettner-docker-proxy", "/usr/share/man/man1/flettner.1.gz"}

    assert wanted - files == set()
    assert "/opt/flettner/lib/python3.12/site-packages/flettner/agent/runtime/daemon.py" in files
    assert not [file for file in files if "/sphinx" in file]  # makes the documentation only
    assert {file for file in files if file.startswith("/etc")} == {
        "/etc/flettner",
        "/etc/flettner/docker-proxy.toml",
    }


def test_the_package_asks_for_its_python_and_belongs_to_root(package: Path) -> None:
    assert {"/usr/bin/python3.12", "systemd >= 249", "glibc >= 2.34"} < set(
        rpm("-qp", "--requires", package).splitlines()
    )
    assert set(rpm("-qp", "--qf", r"[%{FILEUSERNAME}:%{FILEGROUPNAME}\n]", package).split()) == {"root:root"}


@pytest.mark.parametrize("script", ["POSTIN", "PREUN", "POSTUN"])
def test_the_scripts_are_shell(package: Path, script: str) -> None:
    text = rpm("-qp", "--qf", f"%{{{script}}}", package)

    assert "systemctl" in text
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)


@pytest.fixture
def root(tmp_path: Path, package: Path) -> Path:
    rpm("--root", tmp_path, "--install", "--nodeps", "--noscripts", package)
    return tmp_path


def test_a_removal_leaves_changed_configs_and_keys(root: Path) -> None:
    assert rpm("--root", root, "--verify", "--nodeps", "flettner") == ""
    policy = root / "etc/flettner/docker-proxy.toml"
    policy.write_text(policy.read_text() + "# ours\n")
    (root / "etc/flettner/audit.key").touch()

    rpm("--root", root, "--erase", "--noscripts", "flettner")

    assert not (root / "opt/flettner").exists()
    assert not (root / "usr/bin/flettner").is_symlink()
    assert (root / "etc/flettner/docker-proxy.toml.rpmsave").read_text().endswith("# ours\n")
    assert (root / "etc/flettner/audit.key").exists()


def test_its_scripts_work_where_rpm_and_systemd_run(package: Path) -> None:
    later = build("99.0")
    with Machine(system=SYSTEM) as machine:
        policy = machine.root / "etc/flettner/docker-proxy.toml"
        state = machine.root / "var/lib/flettner"

        def install(file: Path) -> None:
            shutil.copy(file, machine.root / "root")
            machine.run("rpm", "--upgrade", "--nodeps", f"/root/{file.name}")

        install(package)
        key = (machine.root / "etc/flettner/audit.key").read_bytes()
        assert machine.run("find", "/opt/flettner", "-name", "daemon.*.pyc").strip()
        assert machine.run("stat", "-c", "%U:%G", "/etc/flettner/docker-proxy.toml") == "root:flettner\n"
        assert machine.shown("flettner", "ActiveState") == "inactive"

        policy.write_text(policy.read_text() + "# ours\n")
        (machine.root / "etc/flettner/flettner.toml").write_text(CONFIG)
        machine.run("systemctl", "enable", "--now", "flettner")
        daemon = machine.shown("flettner", "MainPID")
        install(later)
        assert machine.shown("flettner", "ActiveState") == "active"
        assert machine.shown("flettner", "MainPID") != daemon
        assert machine.run("systemctl", "is-enabled", "flettner").strip() == "enabled"
        assert policy.read_text().endswith("# ours\n")
        assert (machine.root / "etc/flettner/audit.key").read_bytes() == key

        machine.run("rpm", "--erase", "flettner")
        assert not (machine.root / "opt/flettner").exists()
        assert machine.run("systemctl", "is-active", "flettner", check=False).strip() == "inactive"
        assert (state / "audit.jsonl").exists()
        assert machine.run("systemctl", "--failed", "--no-legend").strip() == ""
    later.unlink()
