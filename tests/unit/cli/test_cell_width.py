"""Text layout in terminal cells."""

import pytest

from flettner.tools.terminal.cell_width import clip, count_cells, pad, wrap


@pytest.mark.parametrize(
    ("text", "expected"),
    [("queue", 5), ("Grüße", 5), ("Gru\u0308ße", 5), ("待ち行列", 8), ("🚀", 2), ("❤\ufe0f", 1), ("", 0)],
)
def test_a_wide_character_takes_two_cells_and_a_combining_one_none(text: str, expected: int) -> None:
    assert count_cells(text) == expected
    assert pad(text, 9) == text + " " * (9 - expected)


@pytest.mark.parametrize("room", range(5, 20))
def test_wrapped_lines_fit_the_width_and_keep_the_text(room: int) -> None:
    text = "a 待ち行列 is long, パウゼ von 田中"

    lines = wrap(text, room, "", at_hyphens=True)

    assert max(map(count_cells, lines)) <= room
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_wrapping_keeps_the_indent() -> None:
    assert wrap("  tuned by flettner", 12, "  ", at_hyphens=True) == ["  tuned by", "  flettner"]


def test_wrapping_does_not_split_an_option() -> None:
    assert wrap("say --dry-run", 10, "", at_hyphens=False) == ["say", "--dry-run"]


@pytest.mark.parametrize(
    ("line", "room", "expected"),
    [
        ("queue", 5, "queue"),
        ("queues", 5, "queu…"),
        ("待ち行列", 8, "待ち行列"),
        ("待ち行列", 7, "待ち行…"),
        ("待ち行列", 6, "待ち…"),
        ("\x1b[1mqueue\x1b[0m", 5, "\x1b[1mqueue\x1b[0m"),
        ("\x1b[1mqueues\x1b[0m", 5, "\x1b[1mqueu…\x1b[0m"),
        ("\x1b[1mab\x1b[0mcdef", 5, "\x1b[1mab\x1b[0mcd…"),
        ("abcd\x1b[1mef\x1b[0m", 5, "abcd\x1b[1m…\x1b[0m"),
    ],
)
def test_a_clipped_line_fits_and_keeps_its_colours(line: str, room: int, expected: str) -> None:
    assert clip(line, room) == expected
