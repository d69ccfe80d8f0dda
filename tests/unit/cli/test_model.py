"""`flettner model` and `flettner trace`."""

from dataclasses import replace

from flettner.agent.domain.prediction_check import LawDrop
from flettner.performance_model.trace import read_trace
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.api.test_model import CHECKS, MODEL, REQUESTS
from tests.unit.cli.conftest import Run


def test_prints_the_law_with_units_and_sources(run: Run, daemon: FakeDaemonView) -> None:
    daemon.targets()["chat"].model = MODEL

    status, out, _ = run("model", "chat")

    assert status == 0
    assert "420 windows of steps (iteration log)" in out
    assert "knee at 96 tokens" in out
    assert "80 µs" in out
    assert "601 requests in 600 s" in out
    assert "one of 2 servers" in out
    assert "the proxy's records" in out


def test_says_why_there_is_no_law(run: Run, daemon: FakeDaemonView) -> None:
    daemon.targets()["chat"].model = replace(MODEL, law=None, why_no_law="2 of 5 windows have been compared")

    status, out, _ = run("model", "chat")

    assert status == 0
    assert "No law of step time is in force: 2 of 5 windows have been compared." in out


def test_prints_the_record_of_its_predictions(run: Run, daemon: FakeDaemonView) -> None:
    drop = LawDrop(at=MODEL.fitted_at, why="3 of the last 5 predictions missed their bands")
    daemon.targets()["chat"].model = MODEL
    daemon.set(replace(daemon.targets()["chat"].state, predictions=CHECKS, law_drop=drop))

    status, out, _ = run("model", "chat")

    rows = [line.split() for line in out.splitlines()]
    assert status == 0
    assert ["requests", "within", "the", "objectives", "100%", "+2.0", "points"] in rows
    assert any(row[-2] == "50%" and row[-1].startswith("-") for row in rows if len(row) > 1)
    assert "by rollout (2); bands shall hold 80%" in out
    assert "3 of the last 5 predictions missed their bands" in out


def test_writes_the_trace(run: Run, daemon: FakeDaemonView) -> None:
    daemon.targets()["chat"].model = MODEL

    status, out, _ = run("trace", "chat")

    assert status == 0
    assert list(read_trace(out.splitlines())) == REQUESTS


def test_a_trace_that_does_not_exist_is_refused(run: Run) -> None:
    status, out, err = run("trace", "chat")

    assert (status, out) == (1, "")
    assert "No request of chat is recorded yet" in err
