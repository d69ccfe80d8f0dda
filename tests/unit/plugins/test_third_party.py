"""Third-party policies: files of a folder, and an installed package."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flettner.agent.config import loader as config_loader
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.model import Slo
from flettner.agent.domain.ports import Context
from flettner.agent.plugins import loader
from flettner.policies.conformance.readings import a_reading
from flettner.tools.cli.dispatch import main

POLICY = '''
"""Says hello to 1 reading."""

from dataclasses import dataclass

from flettner.agent.domain.model import Proposal


@dataclass(frozen=True, slots=True)
class Hello:
    """Rule X9."""

    times: int = 1  # hellos

    def propose(self, reading, context):
        return [
            Proposal(rule="X9", to={}, why=f"hello {self.times}", expects="a smile", risks="none",
                     source="a friend", klass="note")
        ]


plugin = Hello
'''
TARGET = """
[[targets]]
name = "chat"
[targets.engine]
kind = "process"
serving = "http://127.0.0.1:8000"
[targets.traffic]
kind = "envoy"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "policies.d"
    made.mkdir(mode=0o755)
    return made


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package called hi 1.2 with one policy, as pip leaves it."""
    site = tmp_path / "site-packages"
    info = site / "hi-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hi\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[flettner.policies]\nhello = hi_there:Hello\n")
    (site / "hi_there.py").write_text(POLICY)
    monkeypatch.syspath_prepend(str(site))
    yield site
    sys.modules.pop("hi_there", None)


def parsed(folder: Path, policies: str = "") -> config_loader.Config:
    return config_loader.parse_config(
        f'[agent]\npolicies_dir = "{folder.name}"\n{TARGET}\n{policies}', here=folder.parent
    )


def error_text(folder: Path, policies: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(folder, policies)
    return str(caught.value)


def test_policies_of_the_folder_run_after_shipped_ones(folder: Path) -> None:
    (folder / "hello.py").write_text(POLICY)

    policies = parsed(folder).policies

    assert [part.name for part in policies][-1] == "hello"
    assert policies[-1].plugin.propose(a_reading(), Context(setting={}, slo=Slo()))[0].why == "hello 1"


def test_a_policy_of_the_folder_takes_options_and_can_be_disabled(folder: Path) -> None:
    (folder / "hello.py").write_text(POLICY)
    policy = parsed(folder, "[policies.hello]\ntimes = 3").policies[-1].plugin

    assert policy.propose(a_reading(), Context(setting={}, slo=Slo()))[0].why == "hello 3"
    assert "hello" not in [part.name for part in parsed(folder, "[policies]\nhello = false").policies]
    assert error_text(folder, "[policies.hello]\ntime = 3") == (
        "[policies.hello] time: unknown key; did you mean times?"
    )
    assert error_text(folder, '[policies.hello]\ntimes = "3"') == (
        "[policies.hello] times: must be a whole number, not '3'"
    )


def test_an_installed_policy_is_enabled_by_its_config_table(installed: Path, folder: Path) -> None:
    assert installed.exists()
    assert "hello" in loader.list_plugins("policies")
    assert "hello" not in [part.name for part in parsed(folder).policies]
    assert parsed(folder, "[policies.hello]\ntimes = 2").policies[-1].name == "hello"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import os\nimport no_such_library\nplugin = 1\n", "line 2: ModuleNotFoundError: No module named"),
        ("x = (\nplugin = 1\n", "line 1: '(' was never closed"),
        ("def f():\n    return 1 / 0\n\nplugin = f()\n", "line 2: ZeroDivisionError: division by zero"),
        ("import sys\nplugin = sys.exit(3)\n", "line 2: SystemExit: 3"),
    ],
    ids=["a library is missing", "not Python", "it raises", "it exits"],
)
def test_a_load_error_names_file_and_line(folder: Path, text: str, words: str) -> None:
    (folder / "odd.py").write_text(text)

    message = error_text(folder)

    assert message.startswith(f"[policies.odd] odd: {folder}/odd.py cannot be loaded: {folder}/odd.py, ")
    assert words in message


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("admission", POLICY, "has the name of one of flettner: rename or remove one of them"),
        ("two words", POLICY, "a name consists of a-z, 0-9 and _"),
        ("odd", "class Hello: ...\n", "has no line `plugin = TheClass`"),
        ("odd", "plugin = 7\n", "is not a dataclass"),
        ("odd", POLICY.replace("propose", "suppose"), "has no `propose(self, reading, context)`"),
    ],
)
def test_rejects_files_that_are_not_policies(folder: Path, name: str, text: str, words: str) -> None:
    (folder / f"{name}.py").write_text(text)

    message = error_text(folder)

    assert words in message
    assert str(folder / f"{name}.py") in message


def test_rejects_a_name_shared_by_a_file_and_a_package(installed: Path, folder: Path) -> None:
    assert installed.exists()
    (folder / "hello.py").write_text(POLICY)

    assert f"hello of {folder}/hello.py has the name of one of the package hi 1.2" in error_text(folder)


def test_a_file_that_starts_with_an_underscore_is_no_policy(folder: Path) -> None:
    (folder / "_part.py").write_text("raise RuntimeError\n")

    assert [part.name for part in parsed(folder).policies] == [
        part.name for part in config_loader.parse_config(TARGET, here=folder.parent).policies
    ]


def test_a_missing_folder_is_reported_with_its_path(tmp_path: Path) -> None:
    assert error_text(tmp_path / "nowhere").startswith(f"[agent] policies_dir: {tmp_path}/nowhere: cannot be")


@pytest.mark.parametrize("what", [".", "hello.py"])
def test_world_writable_files_are_not_run(folder: Path, what: str) -> None:
    (folder / "hello.py").write_text(POLICY)
    (folder / what).chmod(0o777)

    assert f"{folder / what}: is world-writable: chmod o-w" in error_text(folder)


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        ("1 / 0", "line 19: ZeroDivisionError: division by zero"),
        ("[1]", "propose returned 1, which is no Proposal"),
        ("None", "TypeError: 'NoneType' object is not iterable"),
    ],
)
def test_a_failing_policy_proposes_only_a_note_with_its_error(
    folder: Path, answer: str, failure: str
) -> None:
    cut = POLICY.index("        return [")
    (folder / "odd.py").write_text(POLICY[:cut] + f"\n\n\n        return {answer}\n\n\nplugin = Hello\n")

    (note,) = parsed(folder).policies[-1].plugin.propose(a_reading(), Context(setting={}, slo=Slo()))

    assert (note.rule, dict(note.to), note.klass) == ("odd", {}, "note")
    assert failure in note.expects


MALFORMED = (
    ("to", "{1: 2}"),
    ("to", "{'max_num_seqs': [8]}"),
    ("to", "{'gpu_memory_utilization': float('nan')}"),
    ("why", "None"),
    ("klass", "'AUTO'"),
    ("evidence", "[{'metric': 'waiting', 'value': 'many', 'unit': '', 'window_s': 1}]"),
)


@pytest.mark.parametrize(("field", "text"), MALFORMED)
def test_a_proposal_with_values_of_other_types_is_dropped_and_reported(
    folder: Path, field: str, text: str
) -> None:
    bad = POLICY.replace('klass="note")', f'klass="note", **{{"{field}": {text}}})')
    for given in ("to={}, ", 'why=f"hello {self.times}", '):
        bad = bad.replace(given, "" if given.startswith(field) else given)
    bad = bad.replace('klass="note", ', "" if field == "klass" else 'klass="note", ')
    (folder / "odd.py").write_text(bad)

    (note,) = parsed(folder).policies[-1].plugin.propose(a_reading(), Context(setting={}, slo=Slo()))

    assert (note.rule, dict(note.to), note.klass) == ("odd", {}, "note")
    assert note.why.startswith("1 policy failed: odd: a Proposal has a ")


def test_lists_all_policies_with_their_origin(
    folder: Path, installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert installed.exists()
    (folder / "local.py").write_text(POLICY)
    file = folder.parent / "flettner.toml"
    file.write_text(f'[agent]\npolicies_dir = "{folder.name}"\nnot_a_key = 1\n')

    assert main(["policies", "-c", str(file)]) == 0
    text = capsys.readouterr().out

    assert "hello (of the package hi 1.2): Says hello to 1 reading.\n  Rule X9." in text
    assert f"local (of {folder}/local.py): Says hello" in text
    assert "times   int   1        hellos" in text
    assert "source: a friend" in text
    assert "\nadmission: " in f"\n{text}"


def test_check_reports_the_problems_of_the_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "odd.py").write_text("plugin = 1 / 0\n")
    file = folder.parent / "flettner.toml"
    file.write_text(f'[agent]\npolicies_dir = "{folder}"\n{TARGET}')

    assert main(["check", str(file)]) == 1
    assert f"[policies.odd] odd: {folder}/odd.py cannot be loaded: {folder}/odd.py, line 1: Zero" in (
        capsys.readouterr().out
    )
