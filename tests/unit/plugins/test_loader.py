"""Loading of plugins by name, from packages made for the test and from the shipped ones."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import flettner
from flettner.agent.config.plugin_tables import POLICIES
from flettner.agent.domain.errors import ConfigError
from flettner.agent.plugins import loader

SHED = '''
"""Sheds."""
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

@dataclass(frozen=True, slots=True)
class Shed:
    limit: int
    ratio: float = 0.5
    names: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    way: Literal["up", "down"] = "up"
    api_key: str = ""
    _seen: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError(f"limit must be at least 1, not {self.limit}")

plugin = Shed
'''


@pytest.fixture
def kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder with plugins, a library next to them, and two that cannot be loaded."""
    package = tmp_path / "test_kind"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "shed.py").write_text(SHED)
    (package / "part").mkdir()
    (package / "part" / "__init__.py").write_text("raise RuntimeError('must not be imported to be listed')\n")
    (package / "large").mkdir()
    (package / "large" / "__init__.py").write_text(
        "raise RuntimeError('must not be imported to be listed')\n"
    )
    (package / "large" / "plugin.py").write_text(SHED)
    (package / "lacks.py").write_text("import no_such_library\nplugin = 1\n")
    (package / "odd.py").write_text("plugin = 7\n")
    monkeypatch.setattr(flettner, "__path__", [*flettner.__path__, str(tmp_path)])
    yield package.name
    for module in [name for name in sys.modules if name.startswith(f"flettner.{package.name}")]:
        del sys.modules[module]


def error_text(kind: str, name: str, options: dict[str, object], table: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        loader.build_plugin(kind, name, options, table=table)
    return str(caught.value)


def test_plugins_are_found_without_being_imported(kind: str) -> None:
    assert loader.list_plugins(kind) == ("lacks", "large", "odd", "shed")


def test_a_plugin_is_built_with_tuples_for_lists(kind: str) -> None:
    built = loader.build_plugin(
        kind, "shed", {"limit": 3, "ratio": 1, "names": ["a", "b"], "env": {"A": "b"}}
    )

    assert type(built).__name__ == "Shed"
    assert vars(type(built))["__dataclass_params__"].frozen
    assert repr(built).startswith("Shed(limit=3, ratio=1, names=('a', 'b'), env={'A': 'b'}")


def test_an_unknown_name_gets_the_nearest_name_or_the_list_of_all(kind: str) -> None:
    assert error_text(kind, "shedd", {}).endswith(
        f"shedd: no such plugin {kind}/shedd.py; did you mean shed?"
    )
    assert error_text(kind, "zzz", {}).endswith("zzz.py (there are: lacks, large, odd, shed)")


@pytest.mark.parametrize("name", ["__init__", "part", "../shed", "shed.plugin", "", "a b", "os"])
def test_only_plugins_of_the_kind_are_imported(kind: str, name: str) -> None:
    assert "no such plugin" in error_text(kind, name, {})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "[t] limit: missing; it is required"),
        ({"limit": "3"}, "[t] limit: must be a whole number, not '3'"),
        ({"limit": True}, "[t] limit: must be a whole number, not True"),
        ({"limit": 0}, "[t]: limit must be at least 1, not 0"),
        ({"limit": 1, "lmit": 2}, "[t] lmit: unknown key; did you mean limit?"),
        ({"limit": 1, "names": ["a", 5]}, "[t] names[1]: must be a string, not 5"),
        ({"limit": 1, "names": "ab"}, "[t] names: must be a list, not 'ab'"),
        ({"limit": 1, "env": {"A": 1}}, "[t] env.A: must be a string, not 1"),
        ({"limit": 1, "way": "sideways"}, "[t] way: must be 'up' or 'down', not 'sideways'"),
        ({"limit": 1, "_seen": 4}, "[t] _seen: unknown key"),
        ({"limit": 1, "api_key": 12345}, "[t] api_key: must be a string, not ***"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_option_is_named_with_its_table(kind: str, options: dict[str, object], expected: str) -> None:
    assert error_text(kind, "shed", options, table="t").startswith(expected)


def test_all_wrong_options_are_reported_at_once(kind: str) -> None:
    lines = error_text(kind, "shed", {"ratio": "x", "names": 1, "other": 2}, table="t").splitlines()

    assert [line.split(":")[0] for line in lines] == ["[t] limit", "[t] names", "[t] other", "[t] ratio"]


def test_a_missing_library_is_named(kind: str) -> None:
    assert error_text(kind, "lacks", {}).endswith("cannot be loaded: No module named 'no_such_library'")


def test_rejects_a_plugin_that_is_not_a_dataclass(kind: str) -> None:
    assert "is not a dataclass" in error_text(kind, "odd", {})


@pytest.mark.parametrize("kind", ["policies", "sensors", "actuators", "notifiers"])
def test_every_shipped_plugin_can_be_loaded(kind: str) -> None:
    names = loader.list_plugins(kind)

    assert names
    assert all(loader.options_of(loader.load_plugin(kind, name)) is not None for name in names)


def test_every_shipped_policy_is_on_unless_the_file_turns_it_off() -> None:
    """Only `model` waits for `[policies] model = true`."""
    assert {*loader.shipped_plugins("policies")} == {*POLICIES, "model", "regimes"}


def test_every_traffic_plugin_says_whether_it_counts_requests() -> None:
    plugins = {name: loader.load_plugin("actuators", name) for name in loader.shipped_plugins("actuators")}
    traffic = {name: plugin for name, plugin in plugins.items() if not hasattr(plugin, "lock")}

    assert {"envoy", "envoy_deployment", "gateway"} <= traffic.keys()
    assert [name for name, plugin in traffic.items() if not hasattr(plugin, "counts_requests")] == []
