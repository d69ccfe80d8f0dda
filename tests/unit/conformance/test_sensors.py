"""Conformance of every sensor: each module of `sensors/` with a `plugin` is discovered."""

import asyncio
import gc
import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from importlib import import_module
from math import inf, nan
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, get_args, get_origin, get_type_hints

import pytest

import flettner.sensors
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.ports import Sensor
from flettner.agent.domain.reading import Sample
from flettner.agent.plugins.loader import build_plugin, list_plugins, load_plugin, options_of
from tests.unit.sensors.run_sensor import NOON, Fleet, run_sensor

NAMES = list_plugins("sensors")
MODULES = [module.name for module in iter_modules(flettner.sensors.__path__)]
PLAIN = (str, int, float, bool, type(None))

REQUIRED: dict[str, dict[str, Any]] = {
    "dcgm": {"url": "http://127.0.0.1:1/metrics"},
    "prometheus": {"url": "http://127.0.0.1:1", "queries": {"load": "sum(up)"}},
}
"""Options without a default, by sensor; every source that they name is unreachable."""
UNREACHABLE: dict[str, dict[str, Any]] = {
    "nvidia_smi": {"command": "/no/such/nvidia-smi"},
    "docker_events": {"host": "unix:///no/such/docker.sock"},
}

sensor_names = pytest.mark.parametrize("name", NAMES)


def options_for(name: str) -> dict[str, Any]:
    given = REQUIRED.get(name, {}) | UNREACHABLE.get(name, {})
    lacking = {
        option.name
        for option in options_of(load_plugin("sensors", name)).values()
        if option.default is MISSING and option.default_factory is MISSING
    }
    assert lacking <= given.keys(), f"REQUIRED has no {lacking - given.keys()} for the sensor {name}"
    return given


def built(name: str, **options: object) -> Sensor:
    sensor = build_plugin("sensors", name, options_for(name) | options)
    run: Sensor = sensor  # type: ignore[assignment]
    return run


def numbers(name: str) -> list[str]:
    hints = get_type_hints(load_plugin("sensors", name))
    return [option for option in options_of(load_plugin("sensors", name)) if hints[option] in {int, float}]


def plain(annotation: Any) -> bool:  # noqa: ANN401  a type form
    """Whether TOML can express the type: a string, number or boolean, or a list or table of these."""
    if get_origin(annotation) is None:
        return annotation in PLAIN
    return all(plain(part) for part in get_args(annotation) if part is not Ellipsis)


def test_the_known_sensors_are_found() -> None:
    assert {"docker_events", "nvidia_smi", "prometheus", "vllm_metrics"} <= set(NAMES)


@pytest.mark.parametrize("module", MODULES)
def test_module_docstring_states_its_purpose(module: str) -> None:
    doc = inspect.getdoc(import_module(f"flettner.sensors.{module}"))

    assert doc
    assert doc.partition("\n")[0].endswith(".")


@sensor_names
def test_a_sensor_is_a_frozen_dataclass_and_the_last_line_of_its_file(name: str) -> None:
    plugin = load_plugin("sensors", name)
    source = inspect.getsource(import_module(plugin.__module__))

    assert plugin.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert source.splitlines()[-1] == f"plugin = {plugin.__name__}"
    assert plugin.__doc__


@sensor_names
def test_options_are_toml_types(name: str) -> None:
    hints = get_type_hints(load_plugin("sensors", name))

    assert {
        option.name: plain(hints[option.name]) for option in fields(load_plugin("sensors", name))
    } == dict.fromkeys(options_of(load_plugin("sensors", name)), True)


@sensor_names
def test_builds_from_minimal_options(name: str) -> None:
    sensor = built(name)

    assert inspect.iscoroutinefunction(sensor.run)
    assert list(inspect.signature(sensor.run).parameters) == ["view", "emit", "now"]


@sensor_names
def test_refuses_an_option_of_another_type(name: str) -> None:
    for option in options_of(load_plugin("sensors", name)):
        with pytest.raises(ConfigError, match=option):
            built(name, **{option: object()})
        with pytest.raises((TypeError, ValueError)):
            load_plugin("sensors", name)(**(options_for(name) | {option: object()}))
    with pytest.raises(ConfigError, match="unknown key"):
        built(name, no_such_option=1)


@sensor_names
def test_refuses_an_invalid_number(name: str) -> None:
    for option in numbers(name):
        for value in (nan, inf, -1.0):
            with pytest.raises(ValueError, match=option):
                load_plugin("sensors", name)(**(options_for(name) | {option: value}))


@sensor_names
async def test_without_input_it_yields_only_samples_and_can_be_cancelled(name: str, tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    fleet = Fleet({"chat-r0": "127.0.0.1:1"}, state_dir=tmp_path / "chat")
    async with run_sensor(built(name), fleet) as received:
        await asyncio.sleep(0.3)

    assert all(isinstance(sample, Sample) for sample in received.samples)
    sources = [(state.source, state.available) for state in received.states()]
    assert len(sources) == len(set(sources))
    assert all(
        not available and state.why for state, (_, available) in zip(received.states(), sources, strict=True)
    )
    assert asyncio.all_tasks() == before


@sensor_names
@pytest.mark.parametrize("turns", range(4))
async def test_early_cancellation_leaves_nothing_open(name: str, turns: int, tmp_path: Path) -> None:
    fleet = Fleet({"chat-r0": "127.0.0.1:1"}, state_dir=tmp_path / "chat")
    task = asyncio.create_task(built(name).run(fleet, lambda _: None, lambda: NOON))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()

    with suppress(asyncio.CancelledError):
        await task

    gc.collect()  # an open socket raises a ResourceWarning here, which is an error


def test_minimal_options_name_existing_sensors() -> None:
    tables: Mapping[str, object] = REQUIRED | UNREACHABLE

    assert tables.keys() <= set(NAMES)
