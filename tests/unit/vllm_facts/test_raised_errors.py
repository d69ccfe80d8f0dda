"""The table of vLLM's own errors: how it is made from a source tree, and how a line of a log is matched."""

import io
import runpy
import tarfile
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from flettner.vllm_facts.raised_errors import GAP, RaisedError, find_raised, next_release
from tests.support.sources import REPOSITORY

SCRIPT = runpy.run_path(str(REPOSITORY / "scripts/vllm_errors.py"))
OLD = """
class SchedulerConfig:
    def check(self, max_model_len, scheduler_config):
        if scheduler_config.max_num_seqs > 8:
            if self.max_num_batched_tokens < max_model_len:
                raise ValueError(
                    f"The batch of {self.max_num_batched_tokens} tokens is shorter than "
                    f"one request of {max_model_len}.")
        assert self.block_size in (8, 16), "A block has %d tokens, which is no known size" % self.block_size
        msg = "The model {} has no such adapter"
        msg += " of rank {}".format(self.rank)
        raise RuntimeError(msg)
"""
NEW = """
def check(self):
    if not self.enable_chunked_prefill:
        raise ValueError(
            f"The batch of {self.x} tokens is shorter than one request of {self.y}.")
    raise ValueError("too short")
    raise KeyError(f"{a}: {b} {c}")
"""


def archive(folder: Path, release: str, files: dict[str, str]) -> None:
    with tarfile.open(folder / f"vllm-{release}.tar.gz", "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"vllm-{release}/{name}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))


def rows(folder: Path) -> dict[str, Any]:
    messages = [message for file in sorted(folder.glob("*.gz")) for message in SCRIPT["read_archive"](file)]
    return {row.template: row for row in SCRIPT["merge"](messages)}


def test_table_has_the_messages_of_a_release_with_gaps_for_their_values(tmp_path: Path) -> None:
    archive(tmp_path, "0.8.5", {"vllm/config.py": OLD, "tests/test_config.py": OLD, "vllm/broken.txt": "("})
    by_template = rows(tmp_path)

    assert set(by_template) == {
        f"The batch of {GAP} tokens is shorter than one request of {GAP}.",
        f"A block has {GAP} tokens, which is no known size",
        "The model {} has no such adapter of rank",
    }


def test_flags_come_from_the_message_and_its_conditions_the_inner_ones_first(tmp_path: Path) -> None:
    archive(tmp_path, "0.8.5", {"vllm/config.py": OLD})
    by_template = rows(tmp_path)

    batch = by_template[f"The batch of {GAP} tokens is shorter than one request of {GAP}."]
    assert batch.flags == ("max_num_batched_tokens", "max_model_len", "max_num_seqs")
    assert by_template[f"A block has {GAP} tokens, which is no known size"].flags == ("block_size",)


def test_a_message_of_several_releases_has_the_newest_file_and_both_ends(tmp_path: Path) -> None:
    archive(tmp_path, "0.8.5", {"vllm/config.py": OLD})
    archive(tmp_path, "0.11.0", {"vllm/config/scheduler.py": NEW})
    row = rows(tmp_path)[f"The batch of {GAP} tokens is shorter than one request of {GAP}."]

    assert (row.first, row.last, row.file) == ((0, 8), (0, 11), "vllm/config/scheduler.py")
    assert row.flags == ("enable_chunked_prefill",)


def test_a_file_that_this_python_cannot_read_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive(tmp_path, "0.8.5", {"vllm/config.py": "def ("})

    assert not rows(tmp_path)
    assert "vllm/config.py left out" in capsys.readouterr().err


LENGTH = (
    "Value error, max_num_batched_tokens (2048) is smaller than max_model_len (40960). This effectively "
    "limits the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences."
)


def test_a_line_is_matched_whatever_its_values() -> None:
    raised = find_raised(f"(APIServer pid=7) {LENGTH}")

    assert isinstance(raised, RaisedError)
    assert raised.file == "vllm/config/scheduler.py"
    assert raised.flags[:2] == ("max_num_batched_tokens", "max_model_len")
    assert raised.first < (0, 8) < (0, 30) < raised.last


@pytest.mark.parametrize(
    "line",
    [
        "",
        "INFO 01-01 00:00:00 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: model='m'",
        "INFO: Application startup complete.",
        "ValueError: not enough values to unpack (expected 13, got 12)",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 10.00 GiB.",
        "is smaller than max_model_len (1). max_num_batched_tokens (2)",  # in another order
    ],
)
def test_a_line_that_vllm_does_not_raise_is_not_matched(line: str) -> None:
    assert find_raised(line) is None


def test_the_time_of_a_search_grows_with_the_length_of_the_line() -> None:
    short, long = (min(_cpu_s(LENGTH * times) for _ in range(3)) for times in (20, 200))

    assert long < 40 * short  # ten times as long; 100 times would be its square


def _cpu_s(line: str) -> float:
    begun = process_time()
    find_raised(line)
    return process_time() - begun


def test_next_release_is_one_of_those_looked_at() -> None:
    later = next_release((0, 8))

    assert later is not None
    assert later > (0, 8)
    assert next_release((9, 9)) is None
