"""The Debian package in each system that it is for: installed, upgraded, removed, purged."""

from pathlib import Path

import pytest

from tests.integration.systemd.conftest import build, build_next
from tests.integration.systemd.machine import CONFIG, REPOSITORY, Machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize(
    ("system", "python"),
    [("debian", "3.11"), ("trixie", "3.13"), ("jammy", "3.11"), ("noble", "3.12")],
)
def test_installs_upgrades_and_removes_and_only_a_purge_deletes_state(system: str, python: str) -> None:
    with Machine(system=REPOSITORY / ".cache" / system / "root") as machine:
        walk_through(machine, build(python), build_next(python))


def walk_through(machine: Machine, first: Path, later: Path) -> None:
    policy = machine.root / "etc/flettner/docker-proxy.toml"
    config = machine.root / "etc/flettner/flettner.toml"
    state = machine.root / "var/lib/flettner"

    machine.install(first)
    assert machine.run("dpkg", "--verify", "flettner") == ""
    assert machine.shown("flettner", "ActiveState") == "inactive"
    assert machine.run("systemctl", "is-enabled", "flettner", check=False).strip() == "disabled"
    assert "not-found" not in machine.shown("flettner-docker-proxy", "LoadState")
    assert "complete" in machine.run("cat", "/usr/share/bash-completion/completions/flettner")
    assert "rollout" in machine.run("zcat", "/usr/share/man/man1/flettner.1.gz")
    assert machine.run("find", "/opt/flettner", "-name", "sphinx*") == ""  # makes the documentation only
    key = (machine.root / "etc/flettner/audit.key").read_bytes()

    config.write_text(CONFIG)
    policy.write_text(policy.read_text() + "# ours\n")
    machine.run("systemctl", "enable", "--now", "flettner")
    daemon = machine.shown("flettner", "MainPID")
    machine.install(later)
    assert machine.shown("flettner", "ActiveState") == "active"
    assert machine.shown("flettner", "MainPID") != daemon
    assert machine.run("systemctl", "is-enabled", "flettner").strip() == "enabled"
    assert policy.read_text().endswith("# ours\n")
    assert (machine.root / "etc/flettner/audit.key").read_bytes() == key

    machine.run("dpkg", "--remove", "flettner")
    assert not (machine.root / "opt/flettner").exists()
    assert not (machine.root / "usr/bin/flettner").is_symlink()
    assert machine.run("systemctl", "is-active", "flettner", check=False).strip() == "inactive"
    assert (state / "audit.jsonl").exists()
    assert config.exists()

    machine.install(later)
    machine.run("systemctl", "start", "flettner")
    assert machine.shown("flettner", "ActiveState") == "active"

    machine.run("dpkg", "--purge", "flettner")
    assert not state.exists()
    assert not config.parent.exists()
    assert machine.run("find", "/etc", "/usr", "-name", "*flettner*").strip() == ""
    assert not (machine.root / "opt/flettner").exists()
    assert machine.run("systemctl", "--failed", "--no-legend").strip() == ""
