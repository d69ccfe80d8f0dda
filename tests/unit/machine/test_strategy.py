import pytest

from flettner.agent.domain.model import Strategy
from flettner.agent.machine.strategy import HostCapacity, choose_strategy

FREE = HostCapacity(free=True, why="GPU 0 has 40 of 80 GiB free")
FULL = HostCapacity(free=False, why="GPU 0 has 3 of 80 GiB free")
UNKNOWN = HostCapacity(free=None, why="nvidia-smi hangs")


@pytest.mark.parametrize(
    ("servers", "room", "strategy"),
    [
        (1, FREE, "surge"),
        (3, FREE, "surge"),
        (2, FULL, "replace"),
        (3, UNKNOWN, "replace"),
        (1, FULL, "swap"),
        (1, UNKNOWN, "swap"),
    ],
)
def test_the_safest_feasible_strategy_is_chosen_and_its_reason_states_the_facts(
    servers: int, room: HostCapacity, strategy: Strategy
) -> None:
    choice = choose_strategy("auto", servers, room)

    assert choice.strategy == strategy
    assert room.why in choice.why


def test_replace_states_how_many_servers_keep_serving() -> None:
    assert "2 of 3 servers keep serving" in choose_strategy("auto", 3, FULL).why


@pytest.mark.parametrize("wanted", ["auto", "surge"])
def test_unknown_capacity_is_used_only_on_request(wanted: Strategy) -> None:
    assert choose_strategy(wanted, 1, UNKNOWN).strategy == ("surge" if wanted == "surge" else "swap")


@pytest.mark.parametrize(
    ("wanted", "servers", "room", "fix"),
    [
        ("surge", 1, FULL, 'write strategy = "auto"'),
        ("surge", 3, FULL, "GPU 0 has 3 of 80 GiB free"),
        ("replace", 1, FREE, 'write "swap"'),
        ("swap", 2, FULL, 'write "replace"'),
        ("auto", 0, FREE, "start one first"),
    ],
)
def test_an_infeasible_requested_strategy_is_refused_with_the_fix(
    wanted: Strategy, servers: int, room: HostCapacity, fix: str
) -> None:
    choice = choose_strategy(wanted, servers, room)

    assert choice.strategy is None
    assert fix in choice.why


@pytest.mark.parametrize(("wanted", "servers"), [("surge", 2), ("replace", 2), ("swap", 1)])
def test_a_feasible_requested_strategy_is_chosen(wanted: Strategy, servers: int) -> None:
    assert choose_strategy(wanted, servers, FREE).strategy == wanted
