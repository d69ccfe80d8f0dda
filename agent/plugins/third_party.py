"""Policies that others wrote: of installed packages (entry points), and files in a folder of the operator's.

They run in the daemon, with its rights. What they get wrong must be said with their file and line, and must
not end the daemon.
"""

import re
import stat
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from agent.domain.errors import ConfigError
from agent.domain.model import Proposal

GROUP = "trimtab.policies"
SAYS_PLUGIN = re.compile(r"^plugin\b.*=", re.MULTILINE)
NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ThirdPartyPolicy:
    """One policy that is not ours. `origin`: the package and its version, or the file."""

    name: str
    origin: str
    place: EntryPoint | Path

    def load(self) -> object:
        """What it gives as its plugin. ConfigError names the file and the line that cannot be loaded."""
        try:
            found: object = self.place.load() if isinstance(self.place, EntryPoint) else _run(self.place)
        except (Exception, SystemExit) as error:
            raise ConfigError(f"{self.origin} cannot be loaded: {where(error)}") from error
        return found


def outsiders(folder: Path | None = None) -> dict[str, ThirdPartyPolicy]:
    """All there are, by name, without importing one. ConfigError: a name is no name, or taken twice."""
    found: dict[str, ThirdPartyPolicy] = {}
    for outsider in (*_installed(), *dropped(folder).values()):
        if not NAME.fullmatch(outsider.name):
            raise ConfigError(
                f"the policy {outsider.name!r} of {outsider.origin}: a name is made of a-z, 0-9 and _, "
                "and starts with a letter"
            )
        if outsider.name in found:
            raise ConfigError(clash(outsider, found[outsider.name].origin))
        found[outsider.name] = outsider
    return found


def clash(outsider: ThirdPartyPolicy, other: str) -> str:
    return (
        f"the policy {outsider.name} of {outsider.origin} has the name of one of {other}: "
        "rename it or take one of them away"
    )


def where(error: BaseException) -> str:
    """`FILE, line N: what was raised`, of the deepest place outside Python's own import machinery."""
    said = f"{type(error).__name__}: {error}".removesuffix(": ")
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if "importlib" not in f.filename and f.filename != __file__]
    return f"{theirs[-1].filename}, line {theirs[-1].lineno}: {said}" if theirs else said


@dataclass(frozen=True, slots=True)
class GuardedPolicy:
    """A policy that may fail: then it proposes nothing, and its failure is the advice that is shown."""

    name: str
    policy: Any

    def propose(self, reading: object, context: object) -> Sequence[Proposal]:
        try:
            said = tuple(self.policy.propose(reading, context))
            if all(isinstance(proposal, Proposal) for proposal in said):
                return said
            failure = f"propose gave {said!r:.80}, which are not all a Proposal"
        except Exception as error:  # noqa: BLE001 - a stranger's mistake must not end the daemon
            failure = where(error)
        why = f"1 policy failed: {self.name}: {failure}"
        return (
            Proposal(
                rule=self.name,
                to={},
                why=why,
                expects=why,
                risks="none: it is passed over",
                source="trimtab",
                klass="note",
            ),
        )


def _installed() -> list[ThirdPartyPolicy]:
    return [
        ThirdPartyPolicy(
            entry.name, f"the package {entry.dist.name} {entry.dist.version}" if entry.dist else "", entry
        )
        for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    ]


def dropped(folder: Path | None) -> dict[str, ThirdPartyPolicy]:
    """Each *.py of the folder, by name; one that starts with _ is a part of others."""
    if folder is None:
        return {}
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".py" and path.name[0] != "_")
        open_to_all = [path for path in (folder, *files) if path.stat().st_mode & stat.S_IWOTH]
        texts = {path: path.read_text(encoding="utf-8") for path in files}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{folder}: cannot be read: {error}") from error
    if open_to_all:
        raise ConfigError(f"{open_to_all[0]}: anybody may write there: chmod o-w {open_to_all[0]}")
    for path in files:
        if not SAYS_PLUGIN.search(texts[path]):
            raise ConfigError(
                f"{path}: has no line `plugin = TheClass`; a file that is no policy starts with _"
            )
    return {path.stem: ThirdPartyPolicy(path.stem, str(path), path) for path in files}


def _run(path: Path) -> object:
    """The plugin of a file, run anew: under a name of its own, since dataclasses look their module up."""
    name = f"trimtab_policies_d_{path.stem}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module.plugin
