"""The cause of an end, found in logs as vLLM 0.32 writes them."""

from pathlib import Path

import pytest

from actuators.process_group import how_it_ended
from actuators.server_log import log_cause, log_tail

ENGINE = "(EngineCore pid=41) ERROR 11-21 08:00:00 [core.py:1200]"
POINTER = "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above."


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        pytest.param([], "", id="empty"),
        pytest.param(["INFO all is well"], "", id="nothing"),
        pytest.param(
            ["usage: api_server.py [-h]", "api_server.py: error: unrecognized arguments: --x"],
            "api_server.py: error: unrecognized arguments: --x",
            id="unknown flag",
        ),
        pytest.param(
            [f"{ENGINE} EngineCore failed to start.", f"{ENGINE} ValueError: No KV", POINTER],
            "ValueError: No KV",
            id="the root cause, not the pointer to it",
        ),
        pytest.param(
            [
                f"{ENGINE} torch.OutOfMemoryError: CUDA out of memory. Tried",
                f"{ENGINE} ValueError: later",
                POINTER,
            ],
            "torch.OutOfMemoryError: CUDA out of memory. Tried",
            id="memory comes first",
        ),
        pytest.param([POINTER], POINTER.partition(") ")[2], id="better than nothing"),
        pytest.param(
            [
                "x.ValidationError: 2 validation errors for A",
                *("b", "  Value error, c [type=d]", "    For further information visit https://x"),
                *("e", "  Input should be f", "    For further information visit https://x"),
                "INFO afterwards",
            ],
            "x.ValidationError: 2 validation errors for A b Value error, c [type=d] e Input should be f",
            id="pydantic says why on the next lines",
        ),
        pytest.param(["\x1b[31mValueError: red\x1b[0m"], "ValueError: red", id="colours"),
    ],
)
def test_the_cause_is_found(tmp_path: Path, lines: list[str], cause: str) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(lines))

    assert log_cause(log) == cause


def test_the_tail_is_short_and_fit_to_be_shown(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"old\n" + b"first\n" * 50 + b" 10%\r 100% done\n\xff sk-secret\n" + b"x" * 9999)

    tail = log_tail(log, start=4, hidden={"sk-secret"})

    assert len(tail) == 30
    assert tail[-3:-1] == (" 100% done", "\ufffd ***")
    assert len(tail[-1]) == 500
    assert log_tail(tmp_path / "none") == ()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with code 0"),
        (1, "exited with code 1: invalid value, or the engine failed to start"),
        (2, "exited with code 2: unknown flag, or a value of the wrong kind"),
        (-9, "was killed by SIGKILL (out of host memory?)"),
        (137, "was killed by SIGKILL (out of host memory?)"),
        (-15, "was killed by SIGTERM"),
        (-99, "was killed by signal 99"),
        (None, "exited (code unknown: it was not started by this daemon)"),
    ],
)
def test_an_exit_code_is_put_in_words(code: int | None, words: str) -> None:
    assert how_it_ended(code) == words
