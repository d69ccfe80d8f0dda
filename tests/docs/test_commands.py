"""Every command of a page is run, or read by the program's own parser, or is one of the system's below."""

import contextlib
import io
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from agent.api.tokens import Tokens, mint, store
from agent.cli import main, parser
from agent.journal import DAEMON, Entry, Journal
from docker_proxy.main import _parser as proxy_parser
from tests.docs.blocks import PAGES, REPOSITORY, Block, blocks, commands
from tests.fake_desk import NOON, FakeDesk
from tests.serving import served

BLOCKS = blocks("sh")
WALKED = "docs/writing-a-policy.md"  # every command of it is run by tests/test_writing_a_policy.py
UNITS = {unit.name.removesuffix(".service") for unit in (REPOSITORY / "systemd").glob("*.service")}
ASK = frozenset(
    {"status", "suggestions", "approve", "abort", "pause", "resume", "rollouts", "propose", "deny"}
)
LOCAL = frozenset({"knobs", "policies", "lint", "token new", "token list"})
OF_THE_SYSTEM = frozenset(
    [
        "apt",
        "curl",
        "docker",
        "groupadd",
        "iptables",
        "pip",
        "python",
        "python3",
        "seq",
        "sudoedit",
        "systemd-sysusers",
        "systemd-tmpfiles",
        "useradd",
    ]
)
"""They change the machine, or make load: of their words only the files of ours are looked at."""
OURS = ("systemd", "packaging", "examples", "scripts", "deploy")
Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command as an operator of a daemon with one target and an open suggestion, or its rollout."""
    monkeypatch.chdir(tmp_path)
    text, token = mint(role="operator", principal="ann", made_at=NOON, expires=None)
    store(tmp_path / "kept", [token])
    store(tmp_path / "tokens", [])
    with_journal(tmp_path / "state")
    monkeypatch.setenv("TRIMTAB_TOKEN", text)
    monkeypatch.delenv("TRIMTAB_TOKEN_FILE", raising=False)

    def run(*words: str) -> int:
        desk = FakeDesk(target="tiny" if re.search("tiny", " ".join(words)) else "chat")
        made = desk.suggest({"max_num_seqs": 128})
        shown = ("--digest", made.digest)
        with served(desk, Tokens(tmp_path / "kept", desk.now)) as port:
            monkeypatch.setenv("TRIMTAB_URL", f"http://127.0.0.1:{port}")
            if words[0] == "abort":
                main(("approve", made.id, *shown))
            return main((*words, *(shown if words[0] == "approve" else ())))

    return run


def with_journal(state_dir: Path) -> None:
    """What a daemon leaves behind that was started once."""
    state_dir.mkdir()
    journal = Journal.open(state_dir / "audit.jsonl", now=lambda: NOON, sync=lambda _: None)
    journal.append(Entry(at=NOON, actor=DAEMON, action="daemon.started"))
    journal.close()


def trimtab(words: list[str], run: Run) -> None:
    """Run where that needs no host of its own; read by the parser in any case."""
    parser().parse_args(words)
    if words[0] in ASK or (words[0] == "audit" and words[-2:] == ["--state-dir", "state"]):
        assert run(*words) == 0
    elif words[0] in LOCAL or " ".join(words[:2]) in LOCAL:
        local = [Path(word).name if word.startswith("/") else word for word in words]
        assert run(*local) in {0, 1}


def serve(words: list[str], run: Run) -> None:
    """A server's command has nothing that vLLM would not take."""
    del run
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        main(("lint", "--json", "--", *words))
    assert not [one["why"] for one in json.loads(said.getvalue())["findings"] if one["rule"] == "V1"]


def systemctl(words: list[str], run: Run) -> None:
    del run
    verb, *units = [word for word in words if not word.startswith("-")]
    assert verb in {"enable", "reload", "daemon-reload", "stop", "start", "restart"}
    assert set(units) <= UNITS


def journalctl(words: list[str], run: Run) -> None:
    del run
    assert words[words.index("-u") + 1] in UNITS


def proxy(words: list[str], run: Run) -> None:
    del run
    proxy_parser().parse_args(words)


READ: Mapping[str, Callable[[list[str], Run], None]] = {
    "trimtab": trimtab,
    "trimtab-docker-proxy": proxy,
    "systemctl": systemctl,
    "journalctl": journalctl,
}


def look_at(words: list[str], run: Run) -> None:
    """AssertionError, or SystemExit of a parser: the command is wrong, or its program is not known here."""
    for word in words:
        if word.startswith(tuple(f"{folder}/" for folder in OURS)):
            assert list(REPOSITORY.glob(word)), f"there is no {word} here"
    program = Path(words[0]).name
    if program in READ:
        READ[program](words[1:], run)
    elif program == "vllm" or "vllm.entrypoints.openai.api_server" in words:
        serve(words, run)
    elif program == "install":
        ours = any(word.startswith("systemd/") for word in words)
        assert ours or (REPOSITORY / "systemd" / Path(words[-2]).name).exists()
    elif program in {"xargs", "bash"}:
        assert OF_THE_SYSTEM & set(words) or any(word.startswith(OURS) for word in words)
    else:
        assert program in OF_THE_SYSTEM or words[0].startswith(OURS), (
            f"{program}: say in this test what it is"
        )


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_every_command_of_a_page_is_one_that_works(block: Block, run: Run) -> None:
    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
    if block.where.startswith(WALKED):
        return
    for words in commands(block.text):
        try:
            look_at(words, run)
        except SystemExit as end:
            pytest.fail(f"{shlex.join(words)} is refused with status {end.code}")


def test_no_block_is_missed() -> None:
    fences = sum(len(re.findall(r"^ *```sh\b", page.read_text(), re.MULTILINE)) for page in PAGES)
    assert len(BLOCKS) == fences
    assert sum(block.where.startswith(WALKED) for block in BLOCKS) < len(BLOCKS) / 2


def test_every_command_that_is_named_in_a_sentence_exists() -> None:
    (known,) = (action.choices for action in parser()._actions if isinstance(action.choices, dict))
    named = {word for page in PAGES for word in re.findall(r"`trimtab ([a-z][a-z-]*)", page.read_text())}
    assert len(named) > 10
    assert named <= set(known)


@pytest.mark.parametrize(
    "wrong",
    [
        "trimtab approve",
        "trimtab pause chat --reason lunch",
        "trimtab abort another",
        "vllm serve m --max-num-sequences-typo 4",
        "systemctl reload trimtabd",
        "install -m 0644 systemd/gone.conf /etc/",
        "bash examples/gone.sh",
        "frobnicate --now",
    ],
)
def test_a_wrong_command_is_found(wrong: str, run: Run) -> None:
    with pytest.raises((AssertionError, SystemExit)):
        look_at(next(commands(wrong)), run)
