"""`flettner bundle`: what it holds, what it must not hold, and the suggestion that follows from it."""

import json
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from flettner.agent.audit.journal import Journal
from flettner.agent.audit.records import Actor, JournalEntry
from flettner.agent.config.loader import load_config
from flettner.agent.domain.events import Observed
from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.model import Server
from flettner.agent.domain.state import State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.machine.step import Machine
from flettner.agent.runtime.replay import replay
from flettner.agent.runtime.wiring import build_rules
from flettner.policies.conformance.readings import a_reading
from flettner.tools.cli.bundle import read_archive, replayable_config
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.cli.conftest import Run

CONFIG = """
[agent]
state_dir = "{folder}/state"
mode = "approve"
[api]
tokens_file = "tokens"
[[notify]]
name = "ops"
kind = "slack"
url = "https://hooks.slack.com/services/T0/B0/PLANTEDhook"
[[targets]]
name = "chat"
[targets.engine]
kind = "process"
command = ["vllm", "serve", "acme/secret-model", "--max-num-seqs", "4", "--api-key", "PLANTEDkey0123456789"]
env = {{ ANYTHING = "PLANTEDenv" }}
[targets.traffic]
listen = "127.0.0.1:8080"
"""
LOG = "INFO: Received request cmpl-1: prompt: 'PLANTEDprompt', params: SamplingParams(n=1)"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "flettner.toml"
    file.write_text(CONFIG.format(folder=tmp_path), encoding="utf-8")
    return file


def suggest(config: Path, daemon: FakeDaemonView) -> Suggestion:
    """Let the daemon's own rules observe a queue until they suggest a change."""
    loaded = load_config(config)
    machine = Machine(build_rules(loaded, loaded.targets[0]))
    blue = Server(
        name="chat-r0", address="127.0.0.1:9", setting={"model": "acme/secret-model", "max_num_seqs": 4}
    )
    state = State(target="chat", mode="approve", fleet=Fleet(servers=(blue,)))
    view = daemon.targets()["chat"]
    for second in range(300):
        at = daemon.at + timedelta(seconds=second)
        view.observed = Observed(at=at, reading=replace(a_reading(running=4, waiting=9), at=at))
        before = state
        state, _ = machine.step(state, view.observed)
        if state.suggestions.checking is not None:
            view.state = before
            return state.suggestions.checking
    raise AssertionError(state.note)


@pytest.fixture
def journal(config: Path, daemon: FakeDaemonView) -> Path:
    path = load_config(config).state_dir / "audit.jsonl"
    path.parent.mkdir()
    journal = Journal.open(path, now=lambda: daemon.at)
    actor = Actor(kind="person", id="ann", role="operator")
    for number in range(30):
        journal.append(
            JournalEntry(
                at=daemon.at, actor=actor, action="target.paused", target="chat", why=f"{number}", error=LOG
            )
        )
    journal.close()
    return path


def content_of(bundle: Path) -> Mapping[str, bytes]:
    with tarfile.open(bundle) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]


@pytest.mark.usefixtures("journal")
def test_the_policies_suggest_the_same_from_the_bundle(
    config: Path, daemon: FakeDaemonView, tmp_path: Path, run: Run
) -> None:
    suggestion = suggest(config, daemon)
    bundle = tmp_path / "b.tar.gz"

    assert run("bundle", str(config), "-o", str(bundle))[2] == ""
    documents = read_archive(bundle)
    status, out, _ = run("bundle", "--replay", str(bundle))

    answers = replay(replayable_config(documents["config.json"]), documents["targets/chat/inputs.json"])
    assert [again.proposal for again in answers.suggestions] == [suggestion.proposal]
    assert status == 0
    assert "Q1 queue-cap-too-low" in out
    assert f"max_num_seqs={suggestion.proposal.to['max_num_seqs']}" in out


@pytest.mark.usefixtures("journal")
@pytest.mark.parametrize("options", [(), ("--hide-names",)])
def test_holds_no_secret_and_no_prompt(
    config: Path, daemon: FakeDaemonView, tmp_path: Path, run: Run, options: tuple[str, ...]
) -> None:
    suggest(config, daemon)
    bundle = tmp_path / "b.tar.gz"

    run("bundle", str(config), "-o", str(bundle), *options)

    content = content_of(bundle)
    token = (tmp_path / "operator").read_text().strip()
    everything = b"\n".join([*content.values(), *(name.encode() for name in content)])
    assert b"PLANTED" not in everything
    assert token.encode() not in everything
    assert bundle.stat().st_mode & 0o77 == 0


@pytest.mark.usefixtures("journal")
def test_hidden_names_are_the_same_everywhere_and_the_policies_still_suggest(
    config: Path, daemon: FakeDaemonView, tmp_path: Path, run: Run
) -> None:
    suggest(config, daemon)
    bundle = tmp_path / "b.tar.gz"

    run("bundle", str(config), "-o", str(bundle), "--hide-names")
    status, out, _ = run("bundle", "--replay", str(bundle))

    everything = b"\n".join(content_of(bundle).values())
    (target,) = read_archive(bundle)["config.json"]["targets"]
    assert [word for word in (b"secret-model", b'"ann"', b'"chat"', b"chat-r0") if word in everything] == []
    assert status == 0
    assert out.splitlines()[1].split()[:2] == [target["name"], "Q1"]


def test_names_what_is_missing_without_a_daemon_and_a_journal(
    config: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLETTNER_URL", "http://127.0.0.1:9")
    bundle = tmp_path / "b.tar.gz"

    status, out, _ = run("bundle", str(config), "-o", str(bundle))

    manifest = json.loads(content_of(bundle)["flettner-bundle/manifest.json"])
    assert status == 1
    assert "missing: daemon: no daemon answers at http://127.0.0.1:9" in out
    assert set(manifest["missing"]) == {"daemon", "journal"}
    assert run("bundle", "--replay", str(bundle))[0] == 1
    assert run("bundle", str(config), "-o", str(bundle))[0] == 2


@pytest.mark.usefixtures("journal")
def test_holds_the_first_and_last_entries_and_the_verification(
    config: Path, tmp_path: Path, run: Run
) -> None:
    bundle = tmp_path / "b.tar.gz"
    run("bundle", str(config), "-o", str(bundle))

    content = content_of(bundle)
    head = content["flettner-bundle/journal/head.jsonl"].splitlines()
    tail = [json.loads(line) for line in content["flettner-bundle/journal/tail.jsonl"].splitlines()]
    assert len(head) == 20
    assert tail[-1]["why"] == "29"
    assert json.loads(content["flettner-bundle/journal/verification.json"])["ok"]
    assert b"flettner_" in content["flettner-bundle/metrics.txt"]
