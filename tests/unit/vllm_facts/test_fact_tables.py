"""The reader of facts: what a wrong row is answered with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from flettner.vllm_facts.errors import FactError
from flettner.vllm_facts.fact_tables import read_rows, read_tables
from flettner.vllm_facts.values import Value


def is_even(number: int) -> bool:
    return number % 2 == 0


@dataclass(frozen=True, kw_only=True)
class Fact:
    why: str
    count: int = 0
    kind: Literal["a", "b"] = "a"
    rules: tuple[str, ...] = ()
    to: Mapping[str, Value] = field(default_factory=dict)
    check: Callable[[int], bool] = is_even


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "facts.toml"


def test_rows_become_values(file: Path) -> None:
    first_row = '[[fact]]\nwhy = "w"\nrules = ["A1"]\nto = { x = 1, y = true }\n'
    file.write_text(f'{first_row}[[fact]]\nwhy = "v"\ncheck = "is_even"\n')
    first, second = read_rows(file, "fact", Fact, {"is_even": is_even})

    assert (first.why, first.rules, first.to) == ("w", ("A1",), {"x": 1, "y": True})
    assert second.check is is_even


def test_tables_are_read_by_name(file: Path) -> None:
    file.write_text('[one]\nwhy = "w"\ncount = 3\n')

    assert read_tables(file, Fact) == {"one": Fact(why="w", count=3)}
    file.with_name("parts.toml").write_text('[part]\none = { why = "v" }\n')
    assert read_tables(file.with_name("parts.toml"), Fact, "part") == {"one": Fact(why="v")}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("count = 1", r"facts\.toml: \[\[fact\]\] 1: the key 'why' is missing"),
        ('why = "w"\nwhi = 1', r"\[\[fact\]\] 1: unknown key 'whi'; the keys are why, count"),
        ("why = 3", r"\[\[fact\]\] 1: why: 3 is not of the type str"),
        ('why = "w"\ncount = true', r"count: True is not of the type int"),
        ('why = "w"\nkind = "c"', r"kind: 'c' is not of the type Literal\['a', 'b'\]"),
        ('why = "w"\nrules = [1]', r"rules: 1 is not of the type str"),
        ('why = "w"\nrules = "A1"', r"rules: 'A1' is not of the type tuple"),
        ('why = "w"\nto = { x = [1] }', r"to\.x: \[1\] is not of the type"),
        ('why = "w"\ncheck = "is_odd"', r"check: no function is named 'is_odd'; there are: is_even"),
        ("why =", r"facts\.toml: .*line 2"),
    ],
)
def test_a_wrong_row_is_named_with_file_row_and_key(file: Path, row: str, message: str) -> None:
    file.write_text(f"[[fact]]\n{row}\n")

    with pytest.raises(FactError, match=message):
        read_rows(file, "fact", Fact, {"is_even": is_even})


def test_a_row_that_is_no_table_is_named(file: Path) -> None:
    file.write_text("one = 1\n")

    with pytest.raises(FactError, match=r"facts\.toml: \[one\]: a table is needed, not 1"):
        read_tables(file, Fact)
