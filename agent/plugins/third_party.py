"""Third-party policies: entry points of installed packages, and files in the operator's `policies_dir`.

They run inside the daemon with its privileges. Their errors are reported with file and line, and never end
the daemon.
"""

import re
import stat
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from flettner.agent.domain.digest import digest
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.model import Evidence, Proposal

GROUP = "flettner.policies"
PLUGIN_LINE = re.compile(r"^plugin\b.*=", re.MULTILINE)
NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ThirdPartyPolicy:
    """A policy that flettner does not ship. `origin`: the package and its version, or the file."""

    name: str
    origin: str
    source: EntryPoint | Path

    def load(self) -> object:
        """Import its plugin object. Raises ConfigError with the file and line that cannot be loaded."""
        try:
            plugin: object = self.source.load() if isinstance(self.source, EntryPoint) else _run(self.source)
        except (Exception, SystemExit) as error:
            raise ConfigError(f"{self.origin} cannot be loaded: {failure_location(error)}") from error
        return plugin


def find_policies(folder: Path | None = None) -> dict[str, ThirdPartyPolicy]:
    """Find all third-party policies, by name, without imports. ConfigError: an invalid or duplicate name."""
    policies: dict[str, ThirdPartyPolicy] = {}
    for policy in (*_installed_policies(), *policies_in_folder(folder).values()):
        if not NAME.fullmatch(policy.name):
            raise ConfigError(
                f"the policy {policy.name!r} of {policy.origin}: a name consists of a-z, 0-9 and _, "
                "and starts with a letter"
            )
        if policy.name in policies:
            raise ConfigError(name_clash(policy, policies[policy.name].origin))
        policies[policy.name] = policy
    return policies


def name_clash(policy: ThirdPartyPolicy, other: str) -> str:
    return (
        f"the policy {policy.name} of {policy.origin} has the name of one of {other}: "
        "rename or remove one of them"
    )


def failure_location(error: BaseException) -> str:
    """Return `FILE, line N: error` for the innermost frame outside Python's import machinery."""
    message = f"{type(error).__name__}: {error}".removesuffix(": ")
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "importlib" not in f.filename and f.filename != __file__]
    return f"{own[-1].filename}, line {own[-1].lineno}: {message}" if own else message


@dataclass(frozen=True, slots=True)
class GuardedPolicy:
    """Wraps a third-party policy: if it fails, it proposes nothing but a note that states the failure."""

    name: str
    policy: Any

    def ask(self, reading: object, context: object) -> tuple[Sequence[Proposal], str]:
        """Return its proposals, and why it failed; empty if it did not."""
        try:
            return tuple(map(check_proposal, self.policy.propose(reading, context))), ""
        except MalformedProposalError as error:
            return (), str(error)
        except Exception as error:  # noqa: BLE001 - an error in third-party code must not end the daemon
            return (), failure_location(error)

    def propose(self, reading: object, context: object) -> Sequence[Proposal]:
        proposals, failure = self.ask(reading, context)
        if not failure:
            return proposals
        why = f"1 policy failed: {self.name}: {failure}"
        return (
            Proposal(
                rule=self.name,
                to={},
                why=why,
                expects=why,
                risks="none: the policy is skipped",
                source="flettner",
                klass="note",
            ),
        )


def _installed_policies() -> list[ThirdPartyPolicy]:
    return [
        ThirdPartyPolicy(
            entry.name, f"the package {entry.dist.name} {entry.dist.version}" if entry.dist else "", entry
        )
        for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    ]


def policies_in_folder(folder: Path | None) -> dict[str, ThirdPartyPolicy]:
    """Each *.py file of the folder, by name; a name that starts with _ marks a library."""
    if folder is None:
        return {}
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".py" and path.name[0] != "_")
        open_to_all = [path for path in (folder, *files) if path.stat().st_mode & stat.S_IWOTH]
        texts = {path: path.read_text(encoding="utf-8") for path in files}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{folder}: cannot be read: {error}") from error
    if open_to_all:
        raise ConfigError(f"{open_to_all[0]}: is world-writable: chmod o-w {open_to_all[0]}")
    for path in files:
        if not PLUGIN_LINE.search(texts[path]):
            raise ConfigError(
                f"{path}: has no line `plugin = TheClass`; start the name of a library file with _"
            )
    return {path.stem: ThirdPartyPolicy(path.stem, str(path), path) for path in files}


def _run(path: Path) -> object:
    """Execute the file as a module of a name of its own, which dataclasses look up in sys.modules."""
    name = f"flettner_policies_d_{path.stem}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module.plugin


class MalformedProposalError(Exception):
    """A policy returned something else than a Proposal with values of the declared types."""


def check_proposal(proposal: object) -> Proposal:
    """Return a plain Proposal of the same content. Raises MalformedProposalError, naming the field."""
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - `flettner lint` needs none

    if not isinstance(proposal, Proposal):
        raise MalformedProposalError(f"propose returned {proposal!r:.80}, which is no Proposal")
    given: dict[str, Any] = {
        attribute.name: getattr(proposal, attribute.name) for attribute in fields(Proposal)
    }
    if isinstance(given["evidence"], list | tuple):
        given["evidence"] = tuple(
            asdict(item) if isinstance(item, Evidence) else item for item in given["evidence"]
        )
    try:
        plain = TypeAdapter(Proposal).validate_python(given)
        digest(asdict(plain))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise MalformedProposalError(f"a Proposal has a wrong {field}: {first['msg']}") from error
    except ValueError as error:
        raise MalformedProposalError(f"a Proposal has a number that JSON cannot carry: {error}") from error
    return plain
