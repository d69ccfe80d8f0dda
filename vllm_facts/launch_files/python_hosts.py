"""The GPUs that the decorators of Modal and BentoML ask for."""

import ast
import re
from collections.abc import Iterator

from flettner.vllm_facts.launch_files.python_values import Source, dotted

_MODAL = re.compile(r"(?P<name>[A-Za-z][\w-]{0,30})(?::(?P<count>\d{1,2}))?!?")


def find_host(source: Source, node: ast.expr) -> tuple[str, int | None]:
    """The GPU and the number of GPUs for which the function or class around the node asks."""
    for call in _decorators_around(source, node):
        given = {each.arg: each.value for each in call.keywords}
        if "gpu" in given:
            return _read_modal(source, given["gpu"])
        resources = source.resolve(given.get("resources"))
        if isinstance(resources, dict) and "gpu" in resources:
            count = str(resources["gpu"])
            name = str(resources.get("gpu_type", "")).removeprefix("nvidia-")
            return name, int(count) if count.isdecimal() else None
    return "", None


def _decorators_around(source: Source, node: ast.expr) -> Iterator[ast.Call]:
    around = [
        each
        for each in ast.walk(source.tree)
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and each.lineno <= node.lineno <= (each.end_lineno or each.lineno)
    ]
    for each in sorted(around, key=lambda inner: -inner.lineno):
        yield from (call for call in each.decorator_list if isinstance(call, ast.Call))


def _read_modal(source: Source, node: ast.expr) -> tuple[str, int | None]:
    """`gpu="H100:2"`, or an object of modal.gpu."""
    value = source.resolve(node)
    if isinstance(value, str) and (asked := _MODAL.fullmatch(value)):
        return asked["name"], int(asked["count"] or 1)
    if isinstance(node, ast.Call) and dotted(node.func).startswith(("modal.gpu.", "gpu.")):
        given = {each.arg: source.resolve(each.value) for each in node.keywords}
        name, size, count = dotted(node.func).rpartition(".")[2], given.get("size", ""), given.get("count", 1)
        name = f"{name}-{size}" if isinstance(size, str) and size else name
        return name.replace("_", "-"), count if isinstance(count, int) else None
    return "", None
