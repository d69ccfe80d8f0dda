"""Whether host memory has room for the weights of a sleeping server."""

import pytest

from flettner.actuators.host.memory import Host, expected_memory
from flettner.actuators.vllm.sleep import ServerMemory, room_for_weights, why_unavailable
from flettner.vllm_facts.closed_routes import DEV_MODE
from flettner.vllm_facts.values import Setting

GIB = 1024**3
HOST = Host(memory=100 * GIB, memory_total=200 * GIB)  # 90 GiB to spare


@pytest.mark.parametrize(
    ("limit", "weights", "memory", "fits", "why"),
    [
        (
            0,
            70,
            10,
            True,
            "its 70.0 GiB of weights are in host memory, which has 90.0 GiB to spare, 12.5 GiB",
        ),
        (
            0,
            80,
            10,
            False,
            "its 80.0 GiB of weights do not fit into host memory: 90.0 GiB to spare, 12.5 GiB",
        ),
        (64, 16, 10, True, "64.0 GiB of them for the new server"),
        (64, 30, 10, False, "do not fit into host memory"),
        (24, 16, 10, False, "its 16.0 GiB of weights exceed the 14.0 GiB that its memory limit leaves"),
        (0, 16, None, False, "the free memory of the host is not known"),
    ],
)
def test_the_weights_fit_beside_one_more_server_or_the_numbers_say_why_not(
    limit: int, weights: int, memory: int | None, fits: bool, why: str
) -> None:
    held = None
    if memory is not None:
        room = (limit - memory) * GIB if limit else None
        held = ServerMemory(room=room, next=expected_memory(limit * GIB, memory * GIB))

    verdict = room_for_weights(weights * GIB, held, HOST)

    assert verdict.fits is fits
    assert why in verdict.why


@pytest.mark.parametrize(
    ("setting", "env", "why"),
    [
        ({"enable_sleep_mode": True}, {DEV_MODE: "1"}, ""),
        ({"enable_sleep_mode": True}, {DEV_MODE: "0"}, f"it was started without {DEV_MODE}=1"),
        ({}, {DEV_MODE: "1"}, "it was started without --enable-sleep-mode"),
        ({}, {}, f"it was started without --enable-sleep-mode and {DEV_MODE}=1"),
    ],
    ids=["both", "no development mode", "no sleep mode", "neither"],
)
def test_sleep_mode_needs_a_flag_and_development_mode(
    setting: Setting, env: dict[str, str], why: str
) -> None:
    assert why_unavailable(setting, env) == why
