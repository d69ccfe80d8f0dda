"""What the tables of cases cannot show of the rules."""

import pytest

from flettner.lint.rules.parallel import LINTS
from flettner.vllm_facts.knobs import KNOBS, release_of
from flettner.vllm_facts.regressions import REGRESSIONS
from flettner.vllm_facts.releases import cite
from flettner.vllm_facts.serve_config import Model
from flettner.vllm_facts.shell_command.serve_command import parse_command
from flettner.vllm_facts.sizing import parallel_layouts
from flettner.vllm_facts.sizing.divisibility import why_indivisible
from flettner.vllm_facts.validity.engine import NOT_ABOVE, REFUSED
from tests.support.lint_cases import DEEPSEEK_R1, LLAMA_8B, QWEN_7B_AWQ, case, findings
from tests.support.sources import faults


@pytest.mark.parametrize(
    ("options", "little"),
    [
        ("--gpus all", True),
        ("--gpus all --ipc=host", False),
        ("--gpus all --ipc host", False),
        ("--shm-size 16g", False),
        ("-v /dev/shm:/dev/shm", False),
    ],
)
def test_docker_gives_64_mb_of_shared_memory_by_default(options: str, little: bool) -> None:
    words = f"docker run {options} vllm/vllm-openai:v0.20.0 --model org/model -tp 2".split()
    assert parse_command(words).little_shared_memory == ("docker run" if little else None)
    assert not parse_command(["vllm", "serve", "org/model"]).little_shared_memory


@pytest.mark.parametrize(
    ("options", "gib"),
    [
        ("", None),
        ("--shm-size 12g", 12.0),
        ("--shm-size=512m", 0.5),
        ("--shm-size=12g --ipc=host", None),
        ("--shm-size $SIZE", None),
    ],
)
def test_size_of_shared_memory_is_read(options: str, gib: float | None) -> None:
    words = f"docker run {options} vllm/vllm-openai:v0.20.0 --model org/model".split()
    assert parse_command(words).shared_memory_gib == gib
    assert parse_command(["vllm", "serve", "org/model"]).shared_memory_gib is None


def test_tries_no_more_widths_than_the_model_has_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def count(model: Model | None, tp: int) -> str:
        tried.append(tp)
        return why_indivisible(model, tp)

    monkeypatch.setattr(parallel_layouts, "why_indivisible", count)
    (finding,) = findings(LINTS, case("vllm serve m --max-model-len 8192 -tp 3000001", model=LLAMA_8B))
    assert finding.to["tensor_parallel_size"] == 2
    assert len(tried) < 1000


def test_seven_gpus_divide_28_heads_but_not_their_four_kv_heads() -> None:
    assert "KV heads" in why_indivisible(QWEN_7B_AWQ, 7)
    assert not why_indivisible(QWEN_7B_AWQ, 4)
    assert not why_indivisible(None, 7)
    assert not why_indivisible(DEEPSEEK_R1, 8)


def test_each_regression_has_ordered_releases_and_a_condition() -> None:
    for row in REGRESSIONS:
        first, last = release_of(row.first), release_of(row.last)
        assert first
        assert last
        assert first <= last
        assert row.model or row.card or row.knob or row.env
        assert not faults(cite(row.issue))


def test_the_catalogue_lists_the_checked_preconditions() -> None:
    for row in NOT_ABOVE:
        assert f"not above {row.high}" in " ".join(KNOBS[row.low].needs)
    assert all(KNOBS[row.knob].needs for row in REFUSED if row.knob in KNOBS)
