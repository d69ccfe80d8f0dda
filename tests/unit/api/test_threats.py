"""The tests named in docs/security.md exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NAMED = re.findall(
    r"`(tests/[\w/]+\.py)::(test_\w+)`", (ROOT / "docs/security.md").read_text(encoding="utf-8")
)


def test_every_threat_names_a_test() -> None:
    table = (ROOT / "docs/security.md").read_text(encoding="utf-8").partition("## Threats")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]

    assert len(rows) >= 10
    assert all("::test_" in row for row in rows)


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_every_named_test_exists(file: str, name: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
