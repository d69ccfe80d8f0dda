"""`flettner tune` refuses what it cannot run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flettner.performance_model.trace import TraceRequest, write_trace
from tests.support.answering import answering
from tests.support.config_builder import SERVER
from tests.unit.cli.conftest import runs

Tune = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tune(capsys: pytest.CaptureFixture[str]) -> Tune:
    return runs(capsys, "tune")


@pytest.fixture
def load(tmp_path: Path) -> tuple[str, ...]:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(write_trace([TraceRequest(arrival_s=0.0, prompt_tokens=50, output_tokens=100)])))
    return "--trace", str(path), "--ttft", "1s", "--gpu", "RTX 4090", "--out", str(tmp_path / "out")


def test_a_server_that_runs_already_is_left_alone(tune: Tune, load: tuple[str, ...]) -> None:
    with answering(lambda *_: (200, b"")) as url:
        status, _, err = tune(*load, "--", *SERVER, "--port", url.rpartition(":")[2])

    assert status == 2
    assert "answers at" in err


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--ttft", "1s"), "no load is given"),
        (("--request-rate", "2"), "no objective"),
        (("--request-rate", "2", "--ttft", "1s", "--budget", "soon"), "--budget soon"),
        (("--trace", "x", "--num-prompts", "3", "--ttft", "1s"), "give one load, not both"),
        (("--request-rate", "2", "--ttft", "1s", "--trials", "0"), "--trials 0: must be at least 1"),
        (("--request-rate", "2", "--ttft", "1s", "--budget", "1s"), "--budget 1s: is less than the "),
        (("--request-rate", "2", "--ttft", "1s"), "depend on the GPU, which is unknown"),
        (
            ("--request-rate", "2", "--ttft", "1s", "--gpu", "L4", "--out", "/proc/x"),
            "--out /proc/x: cannot be made",
        ),
        (
            ("--request-rate", "2", "--ttft", "1s", "--auto-tune", __file__),
            f"{__file__}: sets none of MODEL",
        ),
    ],
)
def test_a_missing_input_is_named(tune: Tune, given: tuple[str, ...], says: str) -> None:
    status, _, err = tune(*given, "--", "vllm", "serve", "m")

    assert status == 2
    assert says in err
