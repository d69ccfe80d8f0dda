"""What a server has in memory alone is said before another takes its place."""

import pytest

from flettner.actuators.vllm.server_state import STORE, describe_lost_state


@pytest.mark.parametrize("env", [{}, {STORE: "0"}, {STORE: ""}, {"VLLM_LOGGING_LEVEL": "DEBUG"}])
def test_a_server_that_stores_no_answers_loses_none(env: dict[str, str]) -> None:
    assert describe_lost_state(env) == ()


def test_stored_answers_are_named_with_what_their_clients_get() -> None:
    (note,) = describe_lost_state({STORE: "1"})

    assert "VLLM_ENABLE_RESPONSES_API_STORE=1" in note
    assert "previous_response_id gets 404" in note
