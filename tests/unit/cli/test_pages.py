"""The pages generated from the parser."""

import pytest

from tests.unit.cli.pages import PAGES, ROOT, _roff, commands


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_current(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == PAGES[name](), (
        "python -m tests.unit.cli.pages writes it"
    )


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_the_same_in_a_narrow_terminal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = PAGES[name]()
    monkeypatch.setenv("COLUMNS", "30")

    assert PAGES[name]() == wide


def test_every_command_and_argument_has_a_help_text() -> None:
    silent = [command.name for command in commands() if len(command.about) < 5]
    silent += [
        f"{command.name} {name}"
        for command in commands()
        for name, about in command.options
        if not about.strip("; ")
    ]

    assert not silent


def test_escapes_roff_requests() -> None:
    assert _roff(".so /etc/passwd") == "\\&.so /etc/passwd"
    assert _roff("'x \\fB --y\n.z") == "\\&'x \\efB \\-\\-y .z"
