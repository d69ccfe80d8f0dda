"""A target whose proxy cannot serve is shown as such, whatever its phase."""

import pytest

from flettner.tools.cli.resource_text import format_target_line, format_targets


@pytest.mark.parametrize(("paused", "phase"), [(False, "(traffic lost)"), (True, "(paused, traffic lost)")])
def test_the_phase_tells_that_the_split_is_not_in_force(*, paused: bool, phase: str) -> None:
    why = "process 7 (squatter) of user 65534 listens on 127.0.0.1:8080"
    target = {
        **dict.fromkeys(("note", "waits", "failover", "rollout"), ""),
        **dict.fromkeys(("suggestions", "held", "servers", "findings", "open"), ()),
        **dict.fromkeys(("goodput_rps", "ttft_p95_s"), None),
        "name": "chat",
        "phase": "observing",
        "mode": "approve",
        "paused": paused,
        "maintenance": False,
        "sources": [{"source": "traffic", "available": False, "why": why}],
    }

    text = format_targets([target])

    assert f"observing {phase}" in text
    assert "process 7 (squatter)" in text
    assert f"observing {phase}" in format_target_line(target)
