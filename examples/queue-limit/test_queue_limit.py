"""The queue limit: when it proposes a change, and the checks of every policy."""  # noqa: INP001

import pytest
from queue_limit import QueueLimit

from flettner.policies.conformance import CHECKS, ConformanceCheck
from flettner.policies.conformance.readings import a_context, a_reading


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_it_passes_the_checks_of_every_policy(check: ConformanceCheck) -> None:
    check(QueueLimit)


def test_limits_a_long_queue() -> None:
    (proposal,) = QueueLimit().propose(a_reading(running=64, waiting=300), a_context())

    assert proposal.to == {"max_num_queued_reqs": 364}
    assert proposal.klass == "gated"


@pytest.mark.parametrize(
    ("waiting", "version", "setting"),
    [
        pytest.param(20, "0.32.0", {}, id="a short queue"),
        pytest.param(300, "0.28.0", {}, id="a vLLM without the flag"),
        pytest.param(300, "0.32.0", {"max_num_queued_reqs": 500}, id="a limit is set"),
    ],
)
def test_proposes_nothing_otherwise(waiting: float, version: str, setting: dict[str, int]) -> None:
    reading = a_reading(waiting=waiting, version=version)

    assert not QueueLimit().propose(reading, a_context(setting))
