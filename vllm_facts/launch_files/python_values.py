"""Literal values in Python source: constants, names that are set once, and texts put together of these."""

import ast
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from flettner.vllm_facts.errors import FlagError

UNKNOWN: Final = object()
_DEEPEST = 8  # of names that stand for names
_OPERATIONS: Mapping[type[ast.operator], Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b if b else UNKNOWN,
}
_SWITCHES = ("store_true", "store_false")
_LARGEST = 2**63
_LONGEST = 20_000  # characters of a text
_MOST_STEPS = 200_000  # of evaluation in a file: lists of names of lists can be as large as they like
_MAGIC = re.compile(r"(?:(?<=\n)|^)(?P<indent>[ \t]{0,40})[%!?]")  # a line of IPython's


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of argparse: its name on the command line, and its default."""

    name: str
    default: ast.expr | None


@dataclass(slots=True)
class Source:
    """Python source and the names that it sets once. `lines`: where each of its lines stands in the file."""

    text: str
    tree: ast.Module
    lines: list[int]
    file: str = ""  # the notebook whose code it is
    exact: bool = True  # the file holds the lines as they are, so that its words have places
    constants: Mapping[str, ast.expr] = field(default_factory=dict)
    arguments: Mapping[str, Argument] = field(default_factory=dict)  # by `args.model`
    defaults: dict[str, int] = field(default_factory=dict)  # read of variables, arguments: their lines
    steps: int = 0  # of evaluation so far

    def place(self, node: ast.expr | ast.keyword | ast.stmt) -> tuple[int, int]:
        """Where the node stands in the file."""
        start = self.lines[node.lineno - 1] + self._characters(node.lineno, node.col_offset)
        last, column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return start, self.lines[last - 1] + self._characters(last, column)

    def line(self, node: ast.expr | ast.stmt) -> int:
        """The line of the file."""
        return node.lineno if self.exact else self.file.count("\n", 0, self.place(node)[0]) + 1

    def _characters(self, line: int, octets: int) -> int:
        if not self.exact:
            return 0
        begin = self.lines[line - 1]
        end = self.lines[line] if line < len(self.lines) else len(self.text)
        whole = self.text[begin:end]
        return octets if whole.isascii() else len(whole.encode()[:octets].decode(errors="ignore"))

    def resolve(self, node: ast.expr | None, depth: int = 0) -> Any:  # noqa: ANN401, C901 - any literal
        """The value of an expression; UNKNOWN where it is not literal, or too large."""
        self.steps += 1
        if node is None or depth > _DEEPEST or self.steps > _MOST_STEPS:
            return UNKNOWN
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self.resolve(self.constants.get(name), depth + 1)
            case ast.Attribute():
                return self._resolve_argument(dotted(node), node, depth)
            case ast.JoinedStr(values=parts):
                texts = [self.resolve(_inner(part), depth + 1) for part in parts]
                return UNKNOWN if UNKNOWN in texts else _limit("".join(map(str, texts)))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self.resolve(operand, depth + 1)
                return -value if _is_number(value) else UNKNOWN
            case ast.BinOp(left=left, op=op, right=right):
                return _calculate(op, self.resolve(left, depth + 1), self.resolve(right, depth + 1))
            case ast.List(elts=items) | ast.Tuple(elts=items):
                values = [self.resolve(item, depth + 1) for item in items]
                return UNKNOWN if UNKNOWN in values else values
            case ast.Dict():
                return self._resolve_pairs(node, depth)
            case ast.Call():
                return self._resolve_call(node, depth)
            case ast.IfExp(test=test):
                chosen = self.truth(test, depth + 1)
                return (
                    UNKNOWN
                    if chosen is None
                    else self.resolve(node.body if chosen else node.orelse, depth + 1)
                )
            case _:
                return UNKNOWN

    def truth(self, test: ast.expr, depth: int = 0) -> bool | None:
        """Whether a condition of literals holds; None where that is unknown."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.truth(test.operand, depth + 1) if depth <= _DEEPEST else None
            return None if inner is None else not inner
        value = self.resolve(test, depth + 1)
        return None if value is UNKNOWN else bool(value)

    def _resolve_pairs(self, node: ast.Dict, depth: int) -> Any:  # noqa: ANN401
        keys = [self.resolve(key, depth + 1) for key in node.keys]
        values = [self.resolve(value, depth + 1) for value in node.values]
        if UNKNOWN in values or not all(isinstance(key, (str, int)) for key in keys):
            return UNKNOWN
        return dict(zip(keys, values, strict=True))

    def _resolve_argument(self, name: str, node: ast.expr, depth: int) -> Any:  # noqa: ANN401
        """The default of an argument of the program, `args.model`."""
        argument = self.arguments.get(name)
        if argument is None:
            return UNKNOWN
        value = self.resolve(argument.default, depth + 1)
        if value is not UNKNOWN:
            self.defaults[argument.name] = self.line(node)
        return value

    def _resolve_call(self, node: ast.Call, depth: int) -> Any:  # noqa: ANN401
        name, args = dotted(node.func), node.args
        if name == "str" and len(args) == 1:
            value = self.resolve(args[0], depth + 1)
            return UNKNOWN if value is UNKNOWN else _limit(str(value))
        if name in ("int", "float") and len(args) == 1:
            value = self.resolve(args[0], depth + 1)
            try:
                return UNKNOWN if value is UNKNOWN else (int if name == "int" else float)(value)
            except (TypeError, ValueError):
                return UNKNOWN
        if name == "json.dumps" and len(args) == 1:
            value = self.resolve(args[0], depth + 1)
            return UNKNOWN if value is UNKNOWN else _limit(json.dumps(value))
        if name == "dict" and not args and all(each.arg for each in node.keywords):
            values = {str(each.arg): self.resolve(each.value, depth + 1) for each in node.keywords}
            return UNKNOWN if UNKNOWN in values.values() else values
        if name in ("os.environ.get", "os.getenv", "getenv", "environ.get") and len(args) > 1:
            variable = self.resolve(args[0])
            if isinstance(variable, str):
                self.defaults[variable] = self.line(node)
            return self.resolve(args[1], depth + 1)
        return UNKNOWN


def parse_source(text: str) -> Source:
    """A file of Python. Raises FlagError."""
    lines = [0]
    for line in text.split("\n"):
        lines.append(lines[-1] + len(line) + 1)
    tree = _parse(text)
    return Source(
        text=text, tree=tree, lines=lines, constants=find_constants(tree), arguments=find_arguments(tree)
    )


def parse_cells(file: str, cells: Sequence[tuple[str, Sequence[int]]]) -> Source:
    """The code of a notebook: each cell with the places of its lines in it. Raises FlagError."""
    codes = [_keep_python(code) for code, _ in cells]
    text, tree = "\n".join(codes), _parse("\n".join(codes))
    places = [place for _, lines in cells for place in lines]
    return Source(
        text=text,
        tree=tree,
        lines=[*places, 0],
        file=file,
        exact=False,
        constants=find_constants(tree),
        arguments=find_arguments(tree),
    )


def _keep_python(code: str) -> str:
    """The cell, without IPython's own lines where it has some; as many empty lines if it is no Python."""
    for text in (code, _MAGIC.sub(r"\g<indent>pass #", code)):
        with suppress(FlagError):
            _parse(text)
            return text
    return "\n" * code.count("\n")


def _parse(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes that a later Python will refuse
            return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise FlagError((f"line {line}: " if line else "") + "not the Python that lint can read") from error
    except RecursionError as error:
        raise FlagError("not Python: nested too deeply") from error


def find_constants(tree: ast.Module) -> dict[str, ast.expr]:
    """The names that the file binds once, by an assignment."""
    bound = Counter(_bound_names(tree))
    found: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found[name] = value
            case _:
                pass
    return {name: value for name, value in found.items() if bound[name] == 1}


def find_arguments(tree: ast.Module) -> dict[str, Argument]:
    """The arguments of the only parser of a program, by the name that it gives the result of parse_args()."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if sum(dotted(call.func).rpartition(".")[2] == "ArgumentParser" for call in calls) != 1:
        return {}
    spaces = {name for node in ast.walk(tree) for name in [_parsed_name(node)] if name}
    changed = {
        dotted(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    stored = Counter(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    found = filter(None, map(_read_argument, calls))
    return {
        f"{space}.{dest}": argument
        for dest, argument in found
        for space in spaces
        if stored[space] == 1 and f"{space}.{dest}" not in changed
    }


def _parsed_name(node: ast.AST) -> str:
    """`args` of `args = parser.parse_args()` and of `args, rest = parser.parse_known_args()`."""
    if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and len(node.targets) == 1):
        return ""
    if dotted(node.value.func).rpartition(".")[2] not in {"parse_args", "parse_known_args"}:
        return ""
    target = node.targets[0]
    first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
    return first.id if isinstance(first, ast.Name) else ""


def _read_argument(call: ast.Call) -> tuple[str, Argument] | None:
    names = [
        each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]
    given = {each.arg: each.value for each in call.keywords}
    if dotted(call.func).rpartition(".")[2] != "add_argument" or not names:
        return None
    name = next((each for each in names if each.startswith("--")), names[0])
    dest, action = given.get("dest"), given.get("action")
    named = dest.value if isinstance(dest, ast.Constant) else name.lstrip("-").replace("-", "_")
    switch = isinstance(action, ast.Constant) and action.value in _SWITCHES
    default = given.get("default") or (
        ast.Constant(value=getattr(action, "value", "") == "store_false") if switch else None
    )
    return str(named), Argument(name, default)


def _bound_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=other):
                yield other or name
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                yield from names
            case _:
                pass


def dotted(node: ast.expr) -> str:
    """`os.environ.get` of such an expression; "" for others."""
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _inner(part: ast.expr) -> ast.expr | None:
    if not isinstance(part, ast.FormattedValue):
        return part
    return part.value if part.format_spec is None and part.conversion < 0 else None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _limit(text: str) -> Any:  # noqa: ANN401
    return text if len(text) <= _LONGEST else UNKNOWN


def _calculate(op: ast.operator, left: Any, right: Any) -> Any:  # noqa: ANN401
    if isinstance(op, ast.Add) and isinstance(left, str) and isinstance(right, str):
        return _limit(left + right)
    operation = _OPERATIONS.get(type(op))
    if operation is None or not (_is_number(left) and _is_number(right)):
        return UNKNOWN
    value = operation(left, right)
    return value if _is_number(value) and abs(value) < _LARGEST else UNKNOWN
