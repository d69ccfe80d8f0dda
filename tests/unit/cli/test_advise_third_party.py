"""`flettner advise` runs third-party policies; a broken one does not disable the shipped ones."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.cli.conftest import FLAGS, Advise, Options

SOUND = """
'''Says 1 thing.'''

from dataclasses import dataclass

from flettner.agent.domain.model import Proposal


@dataclass(frozen=True, slots=True)
class Theirs:
    def __post_init__(self):
        BUILT

    def propose(self, reading, context):
        return [Proposal(rule="ACME-1", to=TO, why="1", expects="e", risks="r", source="s", klass="auto")]
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Install a policy named `theirs` like pip does."""

    def install(text: str) -> None:
        info = tmp_path / "site" / "acme-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text("[flettner.policies]\ntheirs = acme_theirs:Theirs\n")
        (info.parent / "acme_theirs.py").write_text(text)
        monkeypatch.syspath_prepend(str(info.parent))

    yield install
    sys.modules.pop("acme_theirs", None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("import not_there", "not_there", id="that cannot be imported"),
        pytest.param("Theirs = 1", "not a dataclass", id="that is none"),
        pytest.param(SOUND.replace("BUILT", "{}[1]"), "KeyError: 1", id="that cannot be built"),
        pytest.param(SOUND.replace("BUILT", "pass").replace("TO", "{'a b': 1}"), "'a b'", id="without sense"),
        pytest.param(
            SOUND.replace("BUILT", "pass").replace("TO", "{'x': {1}}"), "theirs", id="not printable"
        ),
    ],
)
def test_names_and_skips_a_broken_third_party_policy(
    advise: Advise, queued: Options, installed: Callable[[str], None], text: str, expected: str
) -> None:
    installed(text)
    status, out, err = advise(*queued, "--flags", FLAGS)
    _, document, _ = advise(*queued, "--flags", FLAGS, "--json")

    (broken,) = json.loads(document)["broken"]
    assert (status, err) == (1, "")
    assert "Q1 queue-cap-too-low  max_num_seqs 2 -> 16" in out
    assert f"skipped: {broken}" in out
    assert "theirs" in broken
    assert expected in broken


def test_evaluates_a_third_party_policy(
    advise: Advise, queued: Options, installed: Callable[[str], None]
) -> None:
    installed(SOUND.replace("BUILT", "pass").replace("TO", "{'watermark': 0.01}"))
    _, out, _ = advise(*queued, "--flags", FLAGS, "--json")

    document = json.loads(out)
    assert document["broken"] == []
    assert "ACME-1" in {row["rule"] for row in document["findings"]}
    assert document["later"] == [
        "ACME-1 (watermark 0.01): one change at a time; first measure Q1 queue-cap-too-low (max_num_seqs 16)"
    ]


def test_duplicate_policy_name_does_not_disable_the_shipped_policy(
    advise: Advise, queued: Options, installed: Callable[[str], None], tmp_path: Path
) -> None:
    installed(SOUND)
    names = tmp_path / "site" / "acme-1.2.dist-info" / "entry_points.txt"
    names.write_text("[flettner.policies]\nadmission = acme_theirs:Theirs\n")
    _, out, _ = advise(*queued, "--flags", FLAGS, "--json")

    document = json.loads(out)
    assert "admission" in document["broken"][0]
    assert document["findings"][0]["rule"] == "Q1"
