"""The pages that are made of the parser."""

import pytest

from tests.unit.cli.pages import PAGES, ROOT, _roff, commands


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_command_line_is_current(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == PAGES[name](), (
        "python -m tests.unit.cli.pages writes it"
    )


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_the_same_in_a_narrow_terminal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = PAGES[name]()
    monkeypatch.setenv("COLUMNS", "30")

    assert PAGES[name]() == wide


def test_every_command_and_argument_says_what_it_is_for() -> None:
    silent = [one.name for one in commands() if len(one.says) < 5]
    silent += [
        f"{one.name} {name}" for one in commands() for name, says in one.options if not says.strip("; ")
    ]

    assert not silent


def test_nothing_that_is_told_can_be_a_request_of_roff() -> None:
    assert _roff(".so /etc/passwd") == "\\&.so /etc/passwd"
    assert _roff("'x \\fB --y\n.z") == "\\&'x \\efB \\-\\-y .z"
