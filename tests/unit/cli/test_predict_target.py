"""`flettner predict TARGET`: what the daemon's model says of other flags and loads."""

import json

import pytest

from tests.support.fake_daemon_view import FakeDaemonView
from tests.support.learned import learned_model
from tests.unit.cli.conftest import Run


@pytest.fixture(autouse=True)
def _has_learned(daemon: FakeDaemonView) -> None:
    daemon.targets()["chat"].model = learned_model(1.0, seconds=150.0, max_num_seqs=8)


def test_it_shows_both_settings_with_bands_and_a_curve(run: Run) -> None:
    status, out, _ = run("predict", "chat", "max_num_seqs=64", "rate=x1.5")

    assert status == 0
    assert "max_num_seqs 64, rate ×1.5" in out  # noqa: RUF001
    assert "TTFT, 90 %" in out
    assert "requests/s within the objectives, one server" in out
    assert len(out.partition("REQUESTS/S")[2].splitlines()) == 8


def test_the_capacity_of_now_and_after_each_suggestion(run: Run, daemon: FakeDaemonView) -> None:
    daemon.suggest({"max_num_seqs": 64})
    daemon.suggest({"enforce_eager": False})

    status, out, _ = run("predict", "chat", "--capacity")

    assert status == 0
    assert "up to which 95% meet the objectives; recorded are " in out
    rows = [line.split() for line in out.splitlines()]
    now, more, kernels = (
        next(row for row in rows if row[:1] == [name]) for name in ("now", "chat-s1", "chat-s2")
    )
    assert float(more[-4]) > 1.5 * float(now[-4])  # 2.93 (2.70 to 3.11)
    assert kernels[-3:] == ["is", "not", "modelled"]
    answer = json.loads(run("predict", "chat", "--capacity", "--json")[1])
    rates = {each["suggestion"]: each["rate_rps"] for each in answer["suggestions"]}
    assert rates["chat-s1"]["low"] > answer["now"]["rate_rps"]["high"]
    assert rates["chat-s2"] is None


def test_the_capacity_is_not_of_changes(run: Run) -> None:
    status, _, err = run("predict", "chat", "max_num_seqs=64", "--capacity")

    assert status == 2
    assert "leave out the changes" in err


def test_options_may_follow_the_words(run: Run) -> None:
    status, out, _ = run("predict", "chat", "prompt=2", "--json")

    assert status == 0
    assert json.loads(out)["to"] == {}


def test_without_a_law_it_says_why(run: Run, daemon: FakeDaemonView) -> None:
    daemon.targets()["chat"].model = None

    status, _, err = run("predict", "chat")

    assert status == 1
    assert "nothing is learned of chat yet" in err


@pytest.mark.parametrize(
    "words", [(), ("max_num_seqs=64",), ("chat", "rate=fast"), ("chat", "rate=100"), ("chat", "64")]
)
def test_other_words_are_refused_with_an_example(run: Run, words: tuple[str, ...]) -> None:
    status, _, err = run("predict", *words)

    assert status == 2
    assert "x1.5" in err or "max_num_seqs=128" in err


@pytest.mark.parametrize(
    "words", [("--max-num-seqs", "64"), ("--max-num-seqs=64", "rate=x2"), ("rate=x2", "--max-num-seqs", "64")]
)
def test_flags_of_vllm_are_answered_with_the_words_to_write(run: Run, words: tuple[str, ...]) -> None:
    status, _, err = run("predict", "chat", *words)

    assert status == 2
    assert "here max_num_seqs=64" in " ".join(err.split())
