"""docs/architecture.md is true, each package says what it holds, and modules stay small."""

import ast
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
LONGEST_MODULE, LONGEST_FUNCTION = 500, 60


def packages() -> Iterator[Path]:
    """The `__init__.py` of every package of the product, the benchmarks and the tests."""
    for root in (*PRODUCT, "bench", "tests"):
        yield from (REPOSITORY / root).rglob("__init__.py")


def section(title: str) -> str:
    return PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_each_listed_package_exists() -> None:
    listed = re.findall(r"^\| `([\w/]+)` \| ", section("Packages"), re.MULTILINE)

    assert 20 < len(listed) <= 25
    assert [package for package in listed if not (REPOSITORY / package).is_dir()] == []


def test_each_package_says_what_it_holds() -> None:
    modules = [module for module in packages() if not module.is_relative_to(REPOSITORY / "tests" / "unit")]

    assert [module for module in modules if not ast.get_docstring(ast.parse(module.read_text()))] == []


def test_each_file_that_the_architecture_page_names_exists() -> None:
    lines = re.findall(r"^\| `([\w/]+)` \| (.*) \|$", section("Packages"), re.MULTILINE)
    named = [(folder, name) for folder, text in lines for name in re.findall(r"`(\w+\.py)`", text)]
    named += [("agent/machine", name) for name in re.findall(r"`(\w+\.py)`", section("Phases"))]
    assert named
    assert [pair for pair in named if not REPOSITORY.joinpath(*pair).is_file()] == []


def test_the_table_of_phases_is_complete() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ", section("Phases"), re.MULTILINE)

    assert sorted(rows) == sorted(phase.value for phase in Phase)


def test_the_loop_of_a_target_is_assembled_in_one_place() -> None:
    """A new part of the loop reaches the daemon, the simulation, the tests and the benchmarks alike."""
    modules = [
        module for root in (*PRODUCT, "bench", "tests") for module in (REPOSITORY / root).rglob("*.py")
    ]
    builders = [module for module in modules if re.search(r"\bTargetLoop\(", module.read_text())]

    assert [module.relative_to(REPOSITORY).as_posix() for module in builders] == ["agent/runtime/wiring.py"]


def test_no_module_is_longer_than_the_limit() -> None:
    modules = [module for root in PRODUCT for module in (REPOSITORY / root).rglob("*.py")]
    lengths = {str(module): len(module.read_text().splitlines()) for module in modules}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_MODULE} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    modules = [
        module for root in (*PRODUCT, "bench", "tests") for module in (REPOSITORY / root).rglob("*.py")
    ]
    lengths = {
        f"{module.relative_to(REPOSITORY)}: {function.name}": 1 + (function.end_lineno or 0) - function.lineno
        for module in modules
        for function in ast.walk(ast.parse(module.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FUNCTION} == {}
