"""Python that starts vLLM: commands for subprocesses, `LLM(…)` and its like, models of Ray Serve."""

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import SHELLS, starts_engine
from flettner.vllm_facts.launch_files.installed import with_installed_release
from flettner.vllm_facts.launch_files.launch import Launch, Variable, Word
from flettner.vllm_facts.launch_files.python_hosts import find_host
from flettner.vllm_facts.launch_files.python_values import UNKNOWN, Source, dotted
from flettner.vllm_facts.launch_files.python_words import Arguments, name_of, read_arguments, word_of_item
from flettner.vllm_facts.launch_files.shell_script import read_script, starts_vllm, without_places
from flettner.vllm_facts.launch_files.shell_variables import is_place_of_flag

_ENGINES = frozenset({"LLM", "AsyncEngineArgs", "EngineArgs"})
_OF_ENGINE = ("VLLM_", "CUDA_", "NCCL_", "PYTORCH_", "HF_")
_RAY = frozenset({"LLMConfig", "vLLMEngineProcessorConfig", "VLLMEngineProcessorConfig"})
_RUNNERS = frozenset(
    """
    Popen call check_call check_output create_subprocess_shell exec_command execute getoutput popen run
    run_command split system
    """.split()  # noqa: SIM905 - a list would take a line for each word
)
_COMMAND = re.compile(
    r"(?:^|(?<=\n)|(?<=;)|(?<=&&))[ \t]*"
    r"(?:(?:exec|nohup|sudo|[A-Z_]{1,60}=\S{0,200})[ \t]{1,9}){0,9}(?:\S{0,200}/)?"
    r"(?:vllm[ \t]{1,9}serve\b|python[\d.]{0,5}[ \t]{1,9}-m[ \t]{1,9}(?:vllm\.|dynamo\.vllm)"
    r"|(?:docker|podman)[ \t]{1,9}run\b)"
)
_SERVE = (Word(text="vllm"), Word(text="serve"))


def read_python(source: Source) -> list[Launch]:
    """The servers and engines that the code starts, in its order. Raises FlagError."""
    reader = _Reader(source)
    launches = sorted(reader.launches(), key=lambda launch: launch.start)
    env = _find_env(source)
    remarks = [
        f"line {line}: the {'argument' if name.startswith('-') else 'variable'} {name} is read as its default"
        for name, line in sorted(source.defaults.items(), key=lambda each: each[1])
    ]
    return [
        replace(
            launch,
            env={**env, **launch.env},
            remarks=(*launch.remarks, *remarks),
        )
        for launch in with_installed_release(launches, source.text)
    ]


def _find_env(source: Source) -> dict[str, Variable]:
    """What the code sets in os.environ to literal values."""
    found: dict[str, Variable] = {}
    for node in ast.walk(source.tree):
        match node:
            case ast.Assign(targets=[ast.Subscript(value=place, slice=ast.Constant(value=str() as name))]):
                value = source.resolve(node.value) if dotted(place).endswith("environ") else UNKNOWN
            case ast.Call(args=[ast.Constant(value=str() as name), given]) if dotted(node.func).endswith(
                "environ.setdefault"
            ):
                value = source.resolve(given)
            case ast.Call(func=ast.Attribute(attr="env"), args=[ast.Dict() as given]):  # of Modal's image
                literal = source.resolve(given)
                pairs = literal.items() if isinstance(literal, dict) else ()
                found |= {
                    str(key): Variable(value=str(each), start=source.place(given)[0])
                    for key, each in pairs
                    if str(key).startswith(_OF_ENGINE)
                }
                continue
            case _:
                continue
        if isinstance(value, str) and name.startswith(_OF_ENGINE):
            found[name] = Variable(value=value, start=source.place(node)[0])
    return found


class _Reader:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._read = set[int]()  # nodes that belong to a launch that is known
        self._imported = {
            each.asname or each.name: each.name
            for node in ast.walk(source.tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("vllm", "ray")
            for each in node.names
        }
        self._bodies = {
            id(statement): (body, at)
            for node in ast.walk(source.tree)
            for name in ("body", "orelse", "finalbody")
            if isinstance(body := getattr(node, name, None), list)
            for at, statement in enumerate(body)
        }

    def launches(self) -> Iterator[Launch]:
        for node in ast.walk(self._source.tree):
            if id(node) in self._read:
                continue
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    yield from self._read_command(value, named=(name, node))
                case ast.Return(value=ast.expr() as value):
                    yield from self._read_command(value)
                case ast.Call():
                    yield from self._read_call(node)
                case ast.List() | ast.Tuple() | ast.BinOp():
                    yield from self._read_command(node)
                case _:
                    pass

    def _read_call(self, node: ast.Call) -> Iterator[Launch]:
        called = dotted(node.func)
        first, _, last = called.rpartition(".")
        name = self._imported.get(last, "") if not first else last if first == "vllm" else ""
        if name in _ENGINES:
            yield from self._read_engine(node, name)
        elif (name or last) in _RAY:
            yield from self._read_ray(node)
        elif last in _RUNNERS:
            for each in node.args:
                yield from self._read_command(each)

    def _read_engine(self, node: ast.Call, name: str) -> Iterator[Launch]:
        arguments = read_arguments(self._source, node)
        model = [word_of_item(self._source, each) for each in node.args[:1]]
        if not (arguments.words or model):
            return
        launch = self._launch(node, (*_SERVE, *model, *arguments.words), arguments, name=name)
        yield replace(launch, in_process=name == "LLM")

    def _read_ray(self, node: ast.Call) -> Iterator[Launch]:
        given = dict(read_arguments(self._source, node).values)
        loading, kwargs = given.get("model_loading_config"), given.get("engine_kwargs")
        parts = read_arguments(self._source, loading).values if loading else {}
        model = parts.get("model_source") or parts.get("model_id")
        model = model or given.get("model_source") or given.get("model")
        if model is None:
            return
        arguments = read_arguments(self._source, kwargs) if kwargs else Arguments()
        words = (*_SERVE, word_of_item(self._source, model), *arguments.words)
        yield replace(
            self._launch(node, words, arguments, name=""), ray="model" not in given, in_process=True
        )

    def _launch(
        self, node: ast.expr, words: Sequence[Word], arguments: Arguments, *, name: str, placed: bool = True
    ) -> Launch:
        gpu, count = find_host(self._source, node)
        start = self._source.place(node)[0]
        words = words if self._source.exact and placed else without_places(words)
        return Launch(
            name=name,
            start=start,
            words=tuple(words),
            gpu=gpu,
            gpus=count,
            unread=tuple(arguments.unread),
        )

    def _read_command(self, node: ast.expr, named: tuple[str, ast.stmt] | None = None) -> Iterator[Launch]:
        """A list of words, or a text for a shell."""
        if id(node) in self._read:
            return
        if isinstance(node, (ast.Constant, ast.JoinedStr)):
            self._read.add(id(node))
            yield from self._read_text(node)
            return
        items = _items(node)
        if not any(isinstance(each, (ast.Constant, ast.JoinedStr)) for each in items):
            return
        arguments = Arguments()
        self._add_items(arguments, items)
        words = _name_program(arguments.words)
        texts = [word.text for word in words]
        if texts and texts[0].rpartition("/")[2] in SHELLS and len(items) == len(texts):
            self._skip(node)
            yield from (launch for each in items[1:] for launch in self._read_text(each))
            return
        if not (starts_engine(texts) or starts_vllm(texts)):
            return
        self._skip(node)
        arguments.words = words
        if named is not None:
            self._follow_list(arguments, *named)
        yield self._launch(node, arguments.words, arguments, name="")

    def _skip(self, node: ast.AST) -> None:
        self._read |= {id(each) for each in ast.walk(node)}

    def _add_items(self, arguments: Arguments, items: Sequence[ast.expr]) -> None:
        for item in items:
            word = word_of_item(self._source, item)
            if isinstance(item, ast.Starred) or (word.live and is_place_of_flag(arguments.words)):
                line = self._source.line(item)
                arguments.unread.append(f"line {line}: the flags in {ast.unparse(item)[:60]} are unknown")
            else:
                arguments.words.append(word)

    def _follow_list(self, arguments: Arguments, name: str, statement: ast.stmt) -> None:
        """What the statements after it append to the list."""
        body, at = self._bodies.get(id(statement), ([], 0))
        for later in body[at + 1 :]:
            if isinstance(later, ast.Assign) and name_of(later.targets[0]) == name:
                break
            if isinstance(later, ast.If) and (holds := self._source.truth(later.test)) is not None:
                self._append(arguments, name, later.body if holds else later.orelse, sure=True)
            else:
                self._append(arguments, name, [later], sure=False)

    def _append(self, arguments: Arguments, name: str, statements: Sequence[ast.stmt], *, sure: bool) -> None:
        for later in statements:
            for node in ast.walk(later):
                items = _appended(node, name)
                if not items:
                    continue
                self._skip(node)
                if sure or node is later or (isinstance(later, ast.Expr) and node is later.value):
                    self._add_items(arguments, items)
                else:
                    flags = " ".join(word_of_item(self._source, each).text for each in items)[:80]
                    line = self._source.line(items[0])
                    arguments.unread.append(f"line {line}: whether {flags} is added is unknown")

    def _read_text(self, node: ast.expr) -> Iterator[Launch]:
        """The servers of a shell's text."""
        plain, script = isinstance(node, ast.Constant), self._text_of(node)
        if not _COMMAND.search(script):
            return
        gpu, count = find_host(self._source, node)
        begin, end = self._source.place(node)
        written = self._source.text[begin:end] if plain and self._source.exact else ""
        mark = next((mark for mark in ('"""', "'''", '"', "'") if written.startswith(mark)), "")
        launches: list[Launch] = []
        with suppress(FlagError):
            if mark and written[len(mark) : -len(mark)] == script:
                launches = read_script(self._source.text, start=begin + len(mark), end=end - len(mark))
            else:
                launches = [
                    replace(each, start=begin, words=without_places(each.words))
                    for each in read_script(script)
                ]
        yield from (replace(each, gpu=gpu, gpus=count) for each in launches)

    def _text_of(self, node: ast.expr) -> str:
        """The text, with a shell's variable for each part that is not literal."""
        if isinstance(node, ast.JoinedStr):
            return "".join(self._part_of(part) for part in node.values)
        value = self._source.resolve(node)
        return value if isinstance(value, str) else ""

    def _part_of(self, part: ast.expr) -> str:
        value = self._source.resolve(part.value if isinstance(part, ast.FormattedValue) else part)
        return f"${{{name_of(part) or 'VALUE'}}}" if value is UNKNOWN else str(value)


def _items(node: ast.expr) -> list[ast.expr]:
    """The items of a list, or of lists that are added up."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return list(node.elts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and (left := _items(node.left)):
        return [*left, *(_items(node.right) or [ast.copy_location(ast.Starred(node.right), node.right)])]
    return []


def _appended(node: ast.AST, name: str) -> list[ast.expr]:
    match node:
        case ast.AugAssign(op=ast.Add(), target=target, value=value) if name_of(target) == name:
            return _items(value) or [ast.copy_location(ast.Starred(value), value)]
        case ast.Call(func=ast.Attribute(value=target, attr="append"), args=[item]) if (
            name_of(target) == name
        ):
            return [item]
        case ast.Call(func=ast.Attribute(value=target, attr="extend"), args=[items]) if (
            name_of(target) == name
        ):
            return _items(items) or [ast.copy_location(ast.Starred(items), items)]
    return []


def _name_program(words: Sequence[Word]) -> list[Word]:
    """The words, with a name for a program that an expression tells: `[sys.executable, "-m", …]`."""
    texts = [word.text for word in words[:2]]
    if not texts or not words[0].live:
        return list(words)
    program = {"-m": "python3", "serve": "vllm", "-u": "python3"}.get(texts[-1], texts[0])
    return [replace(words[0], text=program), *words[1:]]
