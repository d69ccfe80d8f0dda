"""Code that ended a start, because it does not fit what is installed beside it. Pure."""

import re
from collections.abc import Sequence

_FRAME = re.compile(r'\bFile "(?P<file>[^"]{1,400})", line \d+, in (?P<where>\S+)')
_PACKAGE = re.compile(r"/(?:site|dist)-packages/(?P<name>(?:google/)?[A-Za-z]\w*)")
_OF_HOST = re.compile(
    r"\b(?:Permission|OS|IO|FileNotFound|Timeout|Connection|Memory)\w*Error\b|\[Errno|cannot cache|getpwuid"
)
"""Errors of files, users and networks, which another package would meet as well."""

_LACKS = re.compile(r"cannot import name '\w{1,80}' from '(?P<package>[A-Za-z]\w{0,80})")
_MODULE = "<module>"
_OWN = frozenset({"vllm", "flettner"})
_INSIDE = 3  # calls below a line of a module, in the code that an import runs


def find_unfit_package(error: str, trace: Sequence[str]) -> str:
    """The package that lacks what is imported, or in whose code an import ended; "" for vLLM's own code."""
    if _OF_HOST.search(error):
        return ""
    lacks = _LACKS.search(error)
    if lacks is not None and lacks["package"] not in _OWN:
        return lacks["package"]
    frames = [match for line in trace if (match := _FRAME.search(line))]
    modules = [place for place, frame in enumerate(frames) if frame["where"] == _MODULE]
    if len(modules) < 2 or modules[-2] != modules[-1] - 1 or len(frames) - modules[-1] - 1 > _INSIDE:  # noqa: PLR2004 - one imports the other
        return ""
    package = _PACKAGE.search(frames[-1]["file"])
    return "" if package is None or package["name"] in _OWN else package["name"].replace("/", ".")


EXPLAIN_OVERLAY = (
    "start once without that mount: a file written for another release of vLLM calls what this one does not "
    "have, or lacks what this one calls. If its change is still needed, make it in a copy of this image's "
    "own file, or take the image that it was written for"
)


def find_overlaid(trace: Sequence[str], overlays: Sequence[str]) -> str:
    """The mounted file or folder of vLLM through which the traceback runs last; "" for none."""
    frames = (match["file"] for line in reversed(trace) if (match := _FRAME.search(line)))
    fitting = (path for file in frames for path in overlays if f"{file}/".startswith(f"{path.rstrip('/')}/"))
    return next(fitting, "")


def describe_unfit_package(version: str) -> str:
    """What to do about a package that ended at its import, beside this release of vLLM."""
    release = f"=={version}" if re.fullmatch(r"\d+\.\d+\.\d+(?:\.post\d+)?", version) else ""
    return (
        "no flag of vLLM plays a part: the package does not fit what is installed beside it. `pip check` "
        f"lists what does not fit; a fresh environment (`uv pip install vllm{release} --torch-backend=auto`) "
        "or vLLM's container image has packages that do"
    )
