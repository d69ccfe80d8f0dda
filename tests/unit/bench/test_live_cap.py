"""Worlds whose cap changes while the server runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.loop import static
from bench.loop.jobs import run
from bench.loop.live_cap import has_cap_to_change
from bench.loop.world import parse_world

DOCUMENT: dict[str, object] = {
    "flags": ["--max-num-seqs", "2", "--sim-start-s", "5"],
    "hardware": "4090-8b",
    "prompt": 100,
    "output": 40,
    "slo": {"ttft": ["500ms", 0.95]},
    "load": [[300, 4, 1.0]],
    "right": {"max_num_seqs": "up"},
    "mode": "auto",
}
CAPPED = replace(parse_world("capped", DOCUMENT), live_cap=True)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "CACHE", tmp_path / "cache")


def test_a_cap_is_cured_without_a_second_server() -> None:
    scored = run(CAPPED, 1, real_time=False)
    (rolled,) = scored.rolled

    assert (rolled.outcome, scored.lost) == ("promoted", 0)
    assert scored.first_right
    assert set(rolled.to) == {"max_num_seqs"}
    assert scored.right_since_s is not None
    assert rolled.began_s < scored.right_since_s <= 180
    assert {name.split()[0] for _, shares in scored.shares for name in shares} == {"w-r1"}


def test_other_knobs_need_a_restart() -> None:
    assert has_cap_to_change(CAPPED)
    assert not has_cap_to_change(parse_world("other", DOCUMENT | {"right": {"enforce_eager": "off"}}))
