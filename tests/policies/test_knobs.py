"""The catalogue answers for itself."""

from dataclasses import fields

import pytest

from policies.knobs import KNOBS, KnobFacts, release_of


@pytest.mark.parametrize("facts", KNOBS.values(), ids=list(KNOBS))
def test_every_knob_is_told_completely(facts: KnobFacts) -> None:
    assert all(getattr(facts, text) for text in ("name", "meaning", "default", "source"))
    assert facts.meaning.endswith(".")
    assert (facts.type in ("bool", "choice")) is bool(facts.choices)
    assert facts.unit or facts.choices
    assert "_" in facts.name or facts.name == "watermark"
    assert "-" not in facts.name
    assert {field.name for field in fields(facts)} >= {"since", "removed", "start", "klass"}


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.32.0", (0, 32)),
        ("v0.31.1rc2.dev3+cpu", (0, 31)),
        ("1.0", (1, 0)),
        ("dev", None),
        ("", None),
        (None, None),
    ],
)
def test_a_version_is_read_or_not_known(version: str | None, release: tuple[int, int] | None) -> None:
    assert release_of(version) == release


@pytest.mark.parametrize(
    ("knob", "version", "there"),
    [
        ("max_num_active_seqs", "0.31.0", True),
        ("max_num_active_seqs", "0.30.9", False),
        ("max_num_active_seqs", None, None),
        ("swap_space", "0.17.1", True),
        ("swap_space", "0.18.0", False),
        ("max_num_seqs", "0.6.0", True),
    ],
)
def test_a_knob_knows_its_versions(knob: str, version: str | None, *, there: bool | None) -> None:
    assert KNOBS[knob].in_version(version) is there
