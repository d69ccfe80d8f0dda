"""Any line of the event stream of the Docker Engine is an event or a resync."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.actuators.docker.exit_diagnosis import ObservedEvents
from flettner.clients.docker.events import RESYNC, event_or_resync, just_after

LEAVES = st.sampled_from(
    [None, True, -1, 10**400, 1e300, float("nan"), "", "9", "--5", "9" * 5000, "137", "\ud800"]
)
VALUES = LEAVES | st.lists(LEAVES, max_size=2) | st.dictionaries(st.just("Attributes"), LEAVES)
ACTIONS = st.sampled_from(["oom", "kill", "die", "stop", "destroy", "start", "exec_die", "health_status"])
EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "Action": ACTIONS | VALUES,
        "Actor": VALUES
        | st.dictionaries(
            st.just("Attributes"),
            st.dictionaries(st.sampled_from(["signal", "exitCode"]), VALUES, max_size=2) | VALUES,
        ),
        "timeNano": VALUES,
    },
)
LINES = (
    st.binary(max_size=100)
    | st.integers(0, 20_000).map(lambda depth: b'{"Actor": ' + b"[" * depth)
    | (EVENTS | VALUES).map(lambda event: json.dumps(event).encode())
)


@given(st.lists(LINES, max_size=6))
def test_any_line_is_an_event_or_a_resync(lines: list[bytes]) -> None:
    observed = ObservedEvents()
    for line in lines:
        event = event_or_resync(line)
        observed.record(event)

        since = just_after(event)
        assert since is None or len(since) < 30
    assert observed.exit_code is None or abs(observed.exit_code) < 10**9


@pytest.mark.parametrize(
    "line", [b"[]", b"7", b'{"Actor": [1]}', b'{"Actor": {"Attributes": {"signal": 9}}}', b"[" * 100_000]
)
def test_an_unreadable_line_is_a_resync(line: bytes) -> None:
    assert event_or_resync(line) == RESYNC
