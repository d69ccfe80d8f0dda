"""The cause of an exit in logs of vLLM 0.32."""

from pathlib import Path

import pytest

from flettner.actuators.host.ownership_env import log_of
from flettner.actuators.host.process_group import how_it_ended, was_ended_from_outside
from flettner.actuators.host.server_log import log_cause, log_tail
from flettner.actuators.process.plugin import ProcessPlugin
from flettner.agent.domain.errors import ActError
from tests.support.process_rig import SERVER, STUB, free_ports, site

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
def test_finds_the_cause_in_the_log(tmp_path: Path, lines: list[str], cause: str) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(lines))

    assert log_cause(log) == cause


def test_limits_and_sanitises_the_log_tail(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"old\n" + b"first\n" * 50 + b" 10%\r 100% done\n\xff sk-secret\n" + b"x" * 9999)

    tail = log_tail(log, start=4, hidden={"sk-secret"})

    assert len(tail) == 30
    assert tail[-3:-1] == (" 100% done", "\ufffd ***")
    assert len(tail[-1]) == 500
    assert log_tail(tmp_path / "none") == ()


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("\x1b[1;31mred\x1b[0m and \x1b[38:2::1:2:3mexact\x1b[m", "red and exact"),
        ("\x1b[2J\x1b[H\x1b[?25lscreen", "screen"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;https://x\x1b\\a link\x1b]8;;\x1b\\", "a link"),
        ("\x1bPq#0sixels\x1b\\text", "text"),
        ("\x1bc\x1b(B\x1b7saved", "saved"),
        ("\x1b[12;", "\ufffd[12;"),
        (
            "bell\x07 back\x08 nul\x00 c1\x9b2J del\x7f",
            "bell\ufffd back\ufffd nul\ufffd c1\ufffd2J del\ufffd",
        ),
        ("\u202egnp.exe\u2066\u2028x", "\ufffdgnp.exe\ufffd\ufffdx"),
        ("Loading: 10%\rLoading: 50%\r", "Loading: 50%"),
        ("a\ttab and 漢字\u3000 stay", "a\ttab and 漢字\u3000 stay"),
    ],
)
def test_removes_terminal_control_sequences_from_a_log(tmp_path: Path, written: str, read: str) -> None:
    log = tmp_path / "log"
    log.write_text(written, encoding="utf-8")

    assert log_tail(log) == (read,)


async def test_an_unreadable_log_is_an_error_with_its_cause(tmp_path: Path) -> None:
    engine = ProcessPlugin(command=STUB).bind(site(tmp_path))
    log_of(site(tmp_path), SERVER.name).mkdir(parents=True)

    with pytest.raises(ActError, match="the log of chat-r1 cannot be read: Is a directory"):
        await engine.log(SERVER)


async def test_hides_api_keys_and_lines_of_an_earlier_server_of_the_same_name(tmp_path: Path) -> None:
    log = log_of(site(tmp_path), SERVER.name)
    log.parent.mkdir(parents=True)
    log.write_text("an earlier one\n")
    command = (*STUB, "--api-key", "k3y-of-mine", "--says", "the key is k3y-of-mine")
    engine = ProcessPlugin(command=command, ports=free_ports()).bind(site(tmp_path))
    server = await engine.launch(SERVER, 60)

    lines = await engine.log(server)
    await engine.retire(server)

    assert lines == ("the key is ***",)


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
def test_describes_an_exit_code(code: int | None, words: str) -> None:
    assert how_it_ended(code) == words


@pytest.mark.parametrize(
    ("code", "cause", "oom", "outside"),
    [
        pytest.param(0, "", False, True, id="vLLM ends in order at SIGTERM"),
        pytest.param(0, "EngineDeadError", False, False, id="vLLM ends when its engine died"),
        pytest.param(-15, "", False, True, id="kill"),
        pytest.param(143, "", False, True, id="kill, by a shell"),
        pytest.param(-9, "", False, True, id="kill -9"),
        pytest.param(-9, "", True, False, id="perhaps the kernel, out of memory"),
        pytest.param(-11, "", False, False, id="SIGSEGV"),
        pytest.param(1, "", False, False, id="a crash"),
        pytest.param(None, "", False, False, id="not known"),
    ],
)
def test_knows_whether_a_third_party_ended_a_process(
    code: int | None, cause: str, oom: bool, outside: bool
) -> None:
    assert was_ended_from_outside(code, cause=cause, oom=oom) is outside
