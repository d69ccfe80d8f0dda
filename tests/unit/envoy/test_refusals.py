"""Invalid routes and options are refused before any file is written; no Envoy runs."""

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.actuators.envoy.obstacles import too_slow
from flettner.actuators.envoy.plugin import EnvoyPlugin
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site

BLUE = Server(name="chat-r1", setting={}, address="127.0.0.1:8101")
GREEN = Server(name="chat-r2", setting={}, address="127.0.0.1:8102")
GOOD = Route(number=1, servers=(BLUE, GREEN), weights={BLUE.name: 95, GREEN.name: 5}, fallback=BLUE.name)
CLOSED = replace(GOOD, weights={BLUE.name: 0, GREEN.name: 0}, fallback="", closed_s=30.0)

weight = st.one_of(st.integers(), st.integers(-20, 120), st.floats(), st.booleans(), st.none(), st.text())
names = st.sampled_from([BLUE.name, GREEN.name, "chat-r3", ""])


def is_accepted(weights: Mapping[str, object]) -> bool:
    return (
        set(weights) <= {BLUE.name, GREEN.name}
        and all(type(share) is int and 0 <= share <= 100 for share in weights.values())
        and sum(share for share in weights.values() if type(share) is int) == 100
    )


@given(weights=st.dictionaries(names, weight, max_size=4))
def test_only_percentages_that_sum_to_100_are_written(weights: dict[str, int]) -> None:
    if is_accepted(weights):
        return
    with tempfile.TemporaryDirectory() as folder:
        traffic = EnvoyPlugin().bind(Site(target="chat", state_dir=Path(folder) / "chat", epoch=1))

        for act in (traffic.route, traffic.keep_alive):
            with pytest.raises(ActError):
                asyncio.run(act(replace(GOOD, weights=weights)))

        assert list(Path(folder).iterdir()) == []


@pytest.mark.parametrize(
    ("route", "why"),
    [
        (replace(GOOD, fallback="chat-r9"), "names chat-r9"),
        (replace(GOOD, leased="chat-r9", lease_s=3), "names chat-r9"),
        (replace(GOOD, leased=BLUE.name, lease_s=3), "end on chat-r1 itself"),
        (replace(GOOD, leased=GREEN.name, lease_s=0), "seconds above 0"),
        (replace(GOOD, leased=GREEN.name, lease_s=float("nan")), "seconds above 0"),
        (replace(GOOD, leased=GREEN.name, lease_s=float("inf")), "seconds above 0"),
        (replace(CLOSED, closed_s=0.0), "sum to 0"),
        (replace(CLOSED, closed_s=-1.0), "seconds above 0"),
        (replace(CLOSED, closed_s=float("nan")), "seconds above 0"),
        (replace(CLOSED, closed_s=float("inf")), "seconds above 0"),
        (replace(CLOSED, weights=GOOD.weights), "each server's weight is 0"),
        (replace(CLOSED, weights={BLUE.name: 0, GREEN.name: 5}), "each server's weight is 0"),
        (replace(CLOSED, weights={}), "each server's weight is 0"),
        (replace(CLOSED, weights={**CLOSED.weights, "chat-r9": 0}), "each server's weight is 0"),
        (replace(CLOSED, fallback=BLUE.name), "no fallback and no lease"),
        (replace(CLOSED, leased=GREEN.name, lease_s=3), "no fallback and no lease"),
        (replace(GOOD, servers=(BLUE, GREEN, GREEN)), "two servers of one name"),
        (replace(GOOD, servers=(BLUE, replace(GREEN, address=""))), "HOST:PORT"),
        (replace(GOOD, servers=(BLUE, replace(GREEN, address="host:0"))), "HOST:PORT"),
        (replace(GOOD, servers=(BLUE, replace(GREEN, address="[]:80"))), "HOST:PORT"),
    ],
)
async def test_an_unsupported_route_raises_the_reason_and_writes_nothing(
    tmp_path: Path, route: Route, why: str
) -> None:
    traffic = EnvoyPlugin().bind(Site(target="chat", state_dir=tmp_path / "chat", epoch=1))

    with pytest.raises(ActError, match=why):
        await traffic.route(route)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"listen": "8080"},
        {"listen": "127.0.0.1:70000"},
        {"session_header": "x session"},
        {"concurrency": 0},
        {"report_every_s": 0.0},
        {"open_routes": ("v1/completions",)},
        {"hold_s": -1.0},
        {"hold_s": 0.5},
        {"hold_s": 3601.0},
        {"hold_requests": 0},
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  messages differ
        EnvoyPlugin(**options)  # type: ignore[arg-type]


async def test_a_state_dir_too_long_for_a_socket_is_a_problem(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    traffic = EnvoyPlugin(listen="127.0.0.1:0".replace(":0", ":1")).bind(
        Site(target="chat", state_dir=deep / "chat", epoch=1)
    )

    assert [problem for problem in await traffic.problems() if "unix socket" in problem]


async def test_a_state_dir_that_cannot_be_created_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    traffic = EnvoyPlugin().bind(Site(target="chat", state_dir=tmp_path / "file" / "chat", epoch=1))

    assert [problem for problem in await traffic.problems() if "cannot write in" in problem]


async def test_a_missing_envoy_is_a_problem(tmp_path: Path) -> None:
    traffic = EnvoyPlugin(binary="/no/such/envoy").bind(
        Site(target="chat", state_dir=tmp_path / "chat", epoch=1)
    )

    assert [problem for problem in await traffic.problems() if "/no/such/envoy" in problem]


def test_a_disk_on_which_no_lease_could_be_renewed_in_time_is_a_problem(tmp_path: Path) -> None:
    assert too_slow(tmp_path) == ""
    assert "choose a state_dir on a local disk" in too_slow(tmp_path, within_s=0.0)
    assert list(tmp_path.iterdir()) == []
