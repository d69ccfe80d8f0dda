"""`flettner lint -f` as a hook on files of strangers: it ends soon, and touches no other file."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flettner.agent.domain.errors import ConfigError
from flettner.tools.cli import lint_files

Lint = Callable[..., tuple[int, str, str]]
SERVICE = """services:
  v:
    {merged}
    image: vllm/vllm-openai:v0.9.0
    command: [--model, x, --enforce-eager]
"""
LAUGHS = "a0: &a0 {k: v}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 12)
)


def test_merge_keys_are_followed_once(lint: Lint, tmp_path: Path) -> None:
    (file := tmp_path / "compose.yaml").write_text(LAUGHS + SERVICE.format(merged="<<: *a11"))

    assert "--no-enforce-eager" in lint("--diff", "--gpu", "H100", "-f", str(file))[1]


def test_a_mapping_that_merges_itself_is_read(lint: Lint, tmp_path: Path) -> None:
    (file := tmp_path / "compose.yaml").write_text("x: &x {<<: *x}\n" + SERVICE.format(merged="<<: *x"))

    assert lint("--gpu", "H100", "-f", str(file))[0] == 1


def test_a_long_script_is_read_in_linear_time(lint: Lint, tmp_path: Path) -> None:
    (file := tmp_path / "run.sh").write_text("a;" * 300_000 + "\nvllm serve x --enforce-eager\n")

    assert lint("--gpu", "H100", "-f", str(file))[0] == 1


def test_a_command_of_too_many_words_is_refused(lint: Lint, tmp_path: Path) -> None:
    flags = " ".join(f"--flag{n} 1" for n in range(50_000))
    (file := tmp_path / "run.sh").write_text(f"vllm serve x {flags}\n")

    status, out, _ = lint("-f", str(file))

    assert status == 2
    assert "has 100003 words, lint reads 2000" in out


@pytest.mark.usefixtures("lint")
def test_a_file_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint_files, "_MAX_CPU_S", 0.05)

    def compute() -> None:
        while True:
            pass

    why = r"a\.yaml: checking it takes more than 0\.05 s of CPU"
    with pytest.raises(ConfigError, match=why), lint_files._limited("a.yaml"):
        compute()


def test_only_a_plain_file_is_opened(lint: Lint, tmp_path: Path) -> None:
    os.mkfifo(fifo := tmp_path / "fifo.yaml")

    for file in (fifo, Path("/dev/zero")):
        status, _, err = lint("-f", str(file))
        assert status == 2
        assert "it is no plain file" in err


def test_no_fix_follows_a_link_out_of_the_folder(lint: Lint, tmp_path: Path) -> None:
    (victim := tmp_path / "victim.yaml").write_text(text := SERVICE.format(merged=""))
    (folder := tmp_path / "repo").mkdir()
    (link := folder / "compose.yaml").symlink_to(victim)
    (inside := folder / "real.yaml").write_text(text)
    (beside := folder / "link.yaml").symlink_to(inside)

    status, _, err = lint("--fix", "--gpu", "H100", "-f", str(link))
    lint("--fix", "--gpu", "H100", "-f", str(beside))

    assert (status, victim.read_text()) == (2, text)
    assert "a link leads to" in err
    assert "--no-enforce-eager" in inside.read_text()
    assert beside.is_symlink()
