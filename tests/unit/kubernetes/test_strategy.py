"""The strategy of a change: by the pods that serve, and by what is known of free nodes."""

from typing import Literal

import pytest

from flettner.actuators.kubernetes.preflight import choose_pod_strategy
from flettner.agent.domain.model import Strategy

NO_NODE = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"


@pytest.mark.parametrize(
    ("wanted", "pods", "no_node", "chosen"),
    [
        ("auto", 1, "", "surge"),
        ("auto", 4, "", "surge"),
        ("auto", 4, NO_NODE, "replace"),
        ("replace", 4, "", "replace"),
        ("surge", 4, NO_NODE, "surge"),
        ("swap", 1, NO_NODE, "swap"),
        ("replace", 1, "", None),
        ("swap", 4, NO_NODE, None),
    ],
)
def test_the_strategy_follows_from_pods_and_nodes(
    wanted: Strategy | Literal["auto"], pods: int, no_node: str, chosen: Strategy | None
) -> None:
    assert choose_pod_strategy(wanted, pods, no_node).strategy == chosen


def test_an_outage_is_never_chosen_for_an_operator() -> None:
    refused = choose_pod_strategy("auto", 1, NO_NODE)

    assert refused.strategy is None
    assert NO_NODE in refused.why
    assert 'strategy = "swap"' in refused.why
