"""The checks of a command line, one module for each subject; `LINTS` of a module lists its checks."""

from importlib import import_module
from pkgutil import iter_modules

from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck


def all_lints() -> tuple[DeploymentCheck, ...]:
    """`LINTS` of every module of this package, in the order of the modules' names."""
    names = sorted(module.name for module in iter_modules(__path__))
    modules = [import_module(f"{__name__}.{name}") for name in names]
    return tuple(lint for module in modules for lint in getattr(module, "LINTS", ()))
