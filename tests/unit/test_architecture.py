"""docs/architecture.md lists every package, and modules stay small."""

import re
from collections.abc import Iterator
from pathlib import Path

from flettner.agent.domain.state import Phase

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "architecture.md"
PRODUCT = (
    *sorted(link.name for link in (REPOSITORY / "flettner").iterdir() if link.is_symlink()),
    "flettner",
)
LONGEST_MODULE = 500


def packages() -> Iterator[str]:
    """Every package of the product, the benchmarks and the tests; tests/unit stands for its folders."""
    for root in (*PRODUCT, "bench", "tests"):
        for module in (REPOSITORY / root).rglob("__init__.py"):
            package = module.parent.relative_to(REPOSITORY).as_posix()
            if not package.startswith("tests/unit/"):
                yield package


def section(title: str) -> str:
    return PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def listed() -> list[str]:
    return re.findall(r"^\| `([\w/]+)` \| ", section("Packages"), re.MULTILINE)


def test_each_package_has_one_line_in_the_architecture_page() -> None:
    assert sorted(listed()) == sorted(packages())


def test_each_file_that_the_architecture_page_names_exists() -> None:
    lines = re.findall(r"^\| `([\w/]+)` \| (.*) \|$", section("Packages"), re.MULTILINE)
    named = [(folder, name) for folder, text in lines for name in re.findall(r"`(\w+\.py)`", text)]
    named += [("agent/machine", name) for name in re.findall(r"`(\w+\.py)`", section("Phases"))]
    assert named
    assert [pair for pair in named if not REPOSITORY.joinpath(*pair).is_file()] == []


def test_the_table_of_phases_is_complete() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ", section("Phases"), re.MULTILINE)

    assert sorted(rows) == sorted(phase.value for phase in Phase)


def test_no_module_is_longer_than_the_limit() -> None:
    modules = [module for root in PRODUCT for module in (REPOSITORY / root).rglob("*.py")]
    lengths = {str(module): len(module.read_text().splitlines()) for module in modules}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_MODULE} == {}
