"""Tables and values in Markdown, for the generated pages."""

from collections.abc import Iterable, Sequence


def cell(text: object) -> str:
    """Return one line, safe inside a table, without HTML tags."""
    plain = " ".join(str(text).split())
    return (
        plain.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
        if "`" not in plain
        else code_safe(plain)
    )


def code_safe(text: str) -> str:
    """Escape a text with code in it: only the bar needs it."""
    return text.replace("|", "\\|")


def code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += (f"| {' | '.join(map(cell, row))} |" for row in rows)
    return "\n".join(lines) + "\n"
