"""Every command of a page runs against a daemon and a simulated vLLM, or is listed in NOT_RUN."""

import contextlib
import io
import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from flettner.agent.audit.chain import Head
from flettner.agent.telemetry.journald import encode_log
from flettner.tools.cli.dispatch import main, parser
from flettner.tools.docker_proxy.main import _parser as proxy_parser
from tests.integration.docs.blocks import PAGES, REPOSITORY, Block, blocks, commands
from tests.integration.docs.stage import stage

WALKED = "docs/writing-a-policy.md"  # tests/unit/test_writing_a_policy.py runs its commands
BLOCKS = [block for kind in ("sh", "console") for block in blocks(kind) if block.page != WALKED]
COMMAND_PAGES = list(dict.fromkeys(block.page for block in BLOCKS))

RUN = frozenset(["flettner", "vllm", "curl", "jq", "promtool", "sed", "seq", "tail", "xargs"])
"""Programs that run here. Any other program that is not in NOT_RUN is an error."""

NOT_RUN: Mapping[str, str] = {
    r"apt\b": "changes this machine; tests/integration/packaging/test_deb.py covers it",
    r"packaging/build-deb": "tests/integration/packaging/test_deb.py runs it",
    r"scripts/bootstrap|make ": "installs; CI starts with it, and tests/e2e/test_demo.py runs the demo",
    r"git clone|cd flettner|pipx|uv tool install|python3 -m venv|\S*pip install": (
        "installs; see tests/integration/packaging"
    ),
    r"bash examples/vllm_cpu.sh|\S+/python examples/tiny_model.py": "installs 3.5 GB, as CI does",
    r"systemctl|journalctl|systemd-": "needs systemd; tests/integration/systemd boots one with these units",
    r"sudoedit": "an editor",
    r"kubectl|helm|flettner init --engine": "needs a cluster; tests/integration/kubernetes has one",
    r"groupadd|useradd|install |ln ": "changes this machine; see tests/integration/packaging",
    r"iptables": "changes this machine's network",
    r"flettner tune": "needs a GPU and an hour; see tests/integration/process/test_tune.py",
    r"flettner propose \S+ (image|command|env\.\w+|model)=": (
        "needs an admin and another vLLM; see tests/integration/docker/test_upgrades.py"
    ),
    r"docker (build|run)": "tests/integration/packaging/test_image.py builds the image",
    r"flettner (check|run -c) docker\.toml|flettner-docker-proxy check": (
        "needs a container; tests/integration/docker creates some"
    ),
}
"""Commands by their begin that are only checked: do the files, units and options exist?"""

OURS = ("systemd", "packaging", "examples", "scripts", "deploy")
UNITS = {unit.name.removesuffix(".service") for unit in (REPOSITORY / "systemd").glob("*.service")}


def lines(block: Block) -> Iterator[str]:
    """Yield the commands as typed, without comments; in a session, those after the prompt."""
    for line in re.sub(r" *\\\n *", " ", block.text).splitlines():
        typed = re.sub(r"(^|\s{2,})#.*", "", line).strip()
        if block.kind == "console":
            typed = typed.removeprefix("$ ") if line.startswith("$ ") else ""
        if typed:
            yield typed


def is_run(line: str) -> bool:
    return all(program_of(words) in RUN and not is_exempt(words) for words in commands(line))


def program_of(words: list[str]) -> str:
    return "vllm" if "vllm.entrypoints.openai.api_server" in words else Path(words[0]).name


def is_exempt(words: list[str]) -> bool:
    return any(re.match(start, " ".join(words)) for start in NOT_RUN)


def check(words: list[str]) -> None:
    """Raises AssertionError, or a parser's SystemExit, if the command names no existing file or option."""
    for word in words:
        if word.startswith(tuple(f"{folder}/" for folder in OURS)):
            assert list(REPOSITORY.glob(word)), f"there is no {word} here"
    program, rest = program_of(words), words[1:]
    assert program in RUN or is_exempt(words), f"{program}: add it to RUN or NOT_RUN"
    match program:
        case "flettner":
            parser().parse_args(rest)
        case "flettner-docker-proxy":
            proxy_parser().parse_args(rest)
        case "systemctl":
            verb, *units = [word for word in rest if not word.startswith("-")]
            assert verb in {"enable", "reload", "daemon-reload", "stop", "start", "restart"}
            assert set(units) <= UNITS
        case "journalctl":
            assert rest[rest.index("-u") + 1] in UNITS
        case "vllm":
            serve(words)
        case "install":
            ours = any(word.startswith("systemd/") for word in rest)
            assert ours or (REPOSITORY / "systemd" / Path(rest[-2]).name).exists()
        case _:
            pass


def serve(words: list[str]) -> None:
    """Raises AssertionError if vLLM does not know a flag of the command."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        main(("lint", "--json", "--", *words))
    assert not [
        finding["why"] for finding in json.loads(output.getvalue())["findings"] if finding["rule"] == "V1"
    ]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_documented_command_exists(block: Block) -> None:
    for line in lines(block):
        subprocess.run(["bash", "-n"], input=line, text=True, check=True)
        for words in commands(line):
            try:
                check(words)
            except SystemExit as end:
                pytest.fail(f"{shlex.join(words)} is refused with status {end.code}")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", COMMAND_PAGES)
async def test_documented_commands_work(page: str, tmp_path: Path) -> None:
    typed = [line for block in BLOCKS if block.page == page for line in lines(block)]
    async with stage(tmp_path, page) as here:
        for line in filter(is_run, typed):
            await here.run(line)


def test_checks_every_block() -> None:
    texts = [page.read_text() for page in PAGES if not page.match(WALKED)]
    assert len(BLOCKS) == sum(len(re.findall(r"^ *```(?:sh|console)$", text, re.MULTILINE)) for text in texts)
    assert not [text for text in texts if re.search(r"^ *```(?:bash|shell)?\n\$ ", text, re.MULTILINE)]


def test_each_exception_is_used_by_a_page() -> None:
    typed = [line for block in BLOCKS for line in lines(block)]
    written = [" ".join(words) for line in typed for words in commands(line)]
    assert [start for start in NOT_RUN if not any(re.match(start, command) for command in written)] == []


def test_documented_journal_fields_exist_in_the_log() -> None:
    documented = {
        name
        for block in BLOCKS
        for line in lines(block)
        if line.startswith("journalctl")
        for name in re.findall(r"\bFLETTNER_\w+", line)
    }
    entry = encode_log(
        {"event": "x", "target": "chat", "rollout": "chat-o3", **Head(seq=7, hash="0").log_fields()}
    )
    assert documented == {name for name in documented if f"\n{name}=".encode() in entry} != set()


def test_commands_named_in_sentences_exist() -> None:
    written = {
        command for page in PAGES for command in re.findall(r"`(?:sudo )?flettner ([^`>]+)", page.read_text())
    }
    assert len(written) > 20
    for words in map(shlex.split, written):
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                parser().parse_args([*words, "--help"] if all(map(str.isalpha, words)) else words)
        except SystemExit as end:
            if end.code:
                pytest.fail(f"there is no {shlex.join(words)}")


@pytest.mark.parametrize(
    "wrong",
    [
        "flettner approve",
        "flettner pause chat --reason lunch",
        "vllm serve m --max-num-sequences-typo 4",
        "systemctl reload flettnerd",
        "install -m 0644 systemd/gone.conf /etc/",
        "bash examples/gone.sh",
        "frobnicate --now",
    ],
)
def test_rejects_a_wrong_command(wrong: str) -> None:
    with pytest.raises((AssertionError, SystemExit)):
        check(next(commands(wrong)))


@pytest.mark.parametrize("wrong", ["flettner abort another", "flettner audit verify --pin 9:" + "0" * 64])
async def test_detects_a_failing_command(wrong: str, tmp_path: Path) -> None:
    async with stage(tmp_path, "README.md") as here:
        with pytest.raises(AssertionError, match="exit status"):
            await here.run(wrong)
