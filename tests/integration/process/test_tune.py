"""`flettner tune` starts simulated servers as processes."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flettner.performance_model.trace import TraceRequest, write_trace
from tests.support.config_builder import SERVER
from tests.support.ports import free_port
from tests.support.rig import FLETTNER
from tests.unit.cli.conftest import runs

Tune = Callable[..., tuple[int, str, str]]
FAST = ("--sim-start-s", "0.1", "--sim-speed", "20", "--sim-hardware", "4090-8b")


@pytest.fixture
def tune(capsys: pytest.CaptureFixture[str]) -> Tune:
    return runs(capsys, "tune")


@pytest.fixture
def command() -> tuple[str, ...]:
    """One sequence at a time: all others wait."""
    port = str(free_port())
    return (*SERVER, "--port", port, *FAST, "--max-num-seqs", "1", "--max-num-batched-tokens", "2048")


@pytest.fixture
def load(tmp_path: Path) -> tuple[str, ...]:
    """80 requests within 4 s; alone each takes 0.1 s."""
    trace = [TraceRequest(arrival_s=0.05 * at, prompt_tokens=50, output_tokens=100) for at in range(80)]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(write_trace(trace)))
    return "--trace", str(path), "--ttft", "1s", "--gpu", "RTX 4090", "--out", str(tmp_path / "out")


def test_the_model_finds_the_larger_batch_and_the_report_says_it(
    tune: Tune, command: tuple[str, ...], load: tuple[str, ...], tmp_path: Path
) -> None:
    status, out, err = tune(*load, "--json", "--", *command)
    report = json.loads(out)

    assert status == 0, err
    assert report["better"]
    assert report["verdict"]["changes"]["max_num_seqs"] > 1
    assert report["law"]["law"]["step_us"] > 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<svg" in page
    assert "Better:" in page
    assert [row for row in json.loads((tmp_path / "out" / "serve_params.json").read_text()) if row]


@pytest.mark.slow
def test_an_interrupted_run_does_not_repeat_its_trials(
    tune: Tune, command: tuple[str, ...], load: tuple[str, ...], tmp_path: Path
) -> None:
    params = tmp_path / "params.json"
    params.write_text('[{"max_num_seqs": 4}, {"max_num_seqs": 16}]')
    given = (*load, "--search", "grid", "--serve-params", str(params))
    tune(*given, "--trials", "2", "--", *command)
    file = tmp_path / "out" / "trials.jsonl"
    before = file.read_text()
    status, out, _ = tune(*given, "--", *command)

    assert status == 0
    assert file.read_text().startswith(before)
    rows = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    assert [row["changes"] for row in rows if not row["round"]].count({}) == 1
    assert "max_num_seqs 16" in out


def test_a_run_goes_on_from_another_folder_with_the_log_of_its_first_trial(
    tune: Tune,
    command: tuple[str, ...],
    load: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = (*load[:-1], "out", "--json", "--trials", "1", "--", *command)
    first = json.loads(tune(*given)[1])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = json.loads(tune(*load[:-1], str(tmp_path / "out"), *given[given.index("out") + 1 :])[1])

    assert again["trials"] == first["trials"]
    assert "windows of steps in the log" in first["law"]["source"]
    assert again["law"] == first["law"]


@pytest.mark.smoke
def test_a_setting_that_does_not_start_is_told_and_not_chosen(
    tune: Tune, command: tuple[str, ...], load: tuple[str, ...], tmp_path: Path
) -> None:
    params = tmp_path / "params.json"
    params.write_text('[{"gpu_memory_utilization": 0.99}]')
    status, out, _ = tune(*load, "--search", "grid", "--serve-params", str(params), "--", *command)

    assert status == 0
    assert "the server exited with code 1" in out
    assert "Keep the setting" in out


def test_a_run_that_is_terminated_stops_its_server(command: tuple[str, ...], load: tuple[str, ...]) -> None:
    argv = (*FLETTNER, "tune", *load, "--", *command)
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        port = int(command[command.index("--port") + 1])
        until(lambda: answers(port))
        run.send_signal(signal.SIGTERM)
        status = run.wait(60)

    assert status == 130
    assert not answers(port)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)
