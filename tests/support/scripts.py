"""The scripts of the repository, as modules."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType


def load_script(name: str) -> ModuleType:
    spec = spec_from_file_location(name, Path(__file__).parents[2] / f"scripts/{name}.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018 - one thing
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
