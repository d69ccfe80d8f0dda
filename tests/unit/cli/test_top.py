"""The output of `flettner top` in terminals of three widths."""

import pytest

from flettner.tools.terminal.cell_width import count_cells
from tests.unit.cli.conftest import Run
from tests.unit.cli.seen import ThreeTargets
from tests.unit.cli.terminals import plain, terminal

AT_80 = """\
TARGET         PHASE              GOODPUT  SLO MET   BURN  QUEUE    KV  TTFT P95
chat           canary 25 %         11.2/s   97.50%  0.50x    3.2   87%    420 ms
embeddings-eu  observing           0.50/s   85.60%  14.4x   1280  100%    12.5 s
               (paused)
idle           observing                -        -      -      -     -         -

embeddings-eu: paused by 田中: the queue of 待ち行列 is looked at, and nothing
  starts until that is done
idle: nvidia_smi is lost: no such command: nvidia-smi
q quits
"""
FULL = """\
TARGET         PHASE               TRAFFIC  GOODPUT  SLO MET   BURN  RUNNING  QUEUE    KV  PREEMPT  TTFT P95
chat           canary 25 %          12.1/s   11.2/s   97.50%  0.50x     48.0    3.2   87%   0.04/s    420 ms
embeddings-eu  observing (paused)   12.1/s   0.50/s   85.60%  14.4x     48.0   1280  100%    2.5/s    12.5 s
idle           observing                 -        -        -      -        -      -     -        -         -

embeddings-eu: paused by 田中: the queue of 待ち行列 is looked at, and nothing starts until that is done
idle: nvidia_smi is lost: no such command: nvidia-smi
"""


@pytest.fixture
def daemon() -> ThreeTargets:
    return ThreeTargets()


def drawn(columns: int) -> str:
    with terminal("top", columns=columns) as window:
        window.until("q quits")
        window.type("q")
        status, text = window.end()
    assert status == 0
    return plain(text)


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("columns", "expected"), [(80, AT_80), (120, f"{FULL}q quits\n"), (200, f"{FULL}q quits\n")]
)
def test_shows_every_number_in_its_column(columns: int, expected: str) -> None:
    assert drawn(columns).strip() == expected.strip()


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("columns", [60, 72, 90, 100, 110])
def test_wraps_or_omits_columns_that_do_not_fit(columns: int) -> None:
    shown = drawn(columns)

    assert max(map(count_cells, shown.splitlines())) <= columns
    assert all(name in shown for name in ("SLO MET", "QUEUE", "KV", "97.50%", "100%"))


def test_prints_all_columns_to_a_pipe(run: Run) -> None:
    assert run("top") == (0, FULL, "")


def test_status_shows_the_reason_below_its_table(run: Run) -> None:
    _, out, _ = run("status")

    assert out.splitlines()[-2].startswith("embeddings-eu: paused by 田中")
