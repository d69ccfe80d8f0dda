"""A branch with an edited file, pushed to a git repository by the program `git`."""

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flettner.agent.domain.errors import ForgeError
from flettner.primitives.files import read_file, replace_file
from flettner.redaction import mask

TIMEOUT_S = 120.0
LARGEST_FILE = 2**20
_TOKEN = "FLETTNER_GIT_TOKEN"  # noqa: S105 - the name of a variable: an argument would be visible in /proc
_OPTIONS = (
    *("-c", "user.name=flettner", "-c", "user.email=flettner@localhost", "-c", "commit.gpgsign=false"),
    *("-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never", "-c", "credential.helper="),
)
_HELPER = f'!f() {{ echo username=flettner; echo "password=${_TOKEN}"; }}; f'


_NOISE = ("Cloning into", "warning:", "hint:", "To ", "Please make sure", "and the repository exists")


class GitCommandError(ForgeError):
    """A command of git failed; `command`: its first word."""

    def __init__(self, command: str, why: str) -> None:
        super().__init__(f"git {command}: {why}")
        self.command = command


@dataclass(frozen=True, slots=True, kw_only=True)
class GitRepository:
    url: str
    branch: str  # for which branches are made
    path: str  # of the file, in the repository

    async def push(self, branch: str, edit: Callable[[str], str], message: str, token: str) -> str:
        """Push `branch` with the edited file on top of the latest commit; return its commit.

        Raises ForgeError, and what `edit` raises.
        """
        return await asyncio.to_thread(self._push, branch, edit, message, token)

    async def check(self, branch: str, edit: Callable[[str], str], token: str) -> None:
        """Do as `push` does, with an edit that need not change anything, and push nothing.

        Raises as `push`; the error of a git command is a GitCommandError.
        """
        await asyncio.to_thread(self._check, branch, edit, token)

    def _check(self, branch: str, edit: Callable[[str], str], token: str) -> None:
        with self._cloned(token) as clone:
            edit(self._read(clone))
            _git(
                clone, token, "push", "--quiet", "--dry-run", "--force", "origin", f"HEAD:refs/heads/{branch}"
            )

    def _push(self, branch: str, edit: Callable[[str], str], message: str, token: str) -> str:
        with self._cloned(token) as clone:
            before = self._read(clone)
            after = edit(before)
            if after == before:
                raise ForgeError(f"{self.path}: {self.branch} has the change already")
            file = clone / self.path
            try:
                replace_file(file, after.encode(), mode=file.stat().st_mode & 0o777)
            except OSError as error:
                raise ForgeError(f"{self.path}: {error.strerror}") from None
            _git(clone, token, "commit", "--quiet", "--all", "--message", message)
            _git(clone, token, "push", "--quiet", "--force", "origin", f"HEAD:refs/heads/{branch}")
            return _git(clone, token, "rev-parse", "HEAD").strip()

    @contextmanager
    def _cloned(self, token: str) -> Iterator[Path]:
        """The latest commit of the branch, in a folder of its own."""
        with tempfile.TemporaryDirectory(prefix="flettner-git-") as folder:
            clone = Path(folder) / "clone"
            options = ("--quiet", "--depth", "1", "--no-tags", "--single-branch", "--branch", self.branch)
            _git(Path(folder), token, "clone", *options, "--", self.url, str(clone))
            yield clone

    def _read(self, clone: Path) -> str:
        file = clone / self.path
        if not file.resolve().is_relative_to(clone.resolve()) or file.is_symlink():
            raise ForgeError(f"{self.path}: leads out of the repository")
        try:
            return read_file(file, LARGEST_FILE).decode()
        except OSError as error:
            raise ForgeError(f"{self.path}: {error.strerror} in {self.branch} of {mask(self.url)}") from None
        except UnicodeDecodeError:
            raise ForgeError(f"{self.path}: is no text in UTF-8") from None


def _git(folder: Path, token: str, *words: str) -> str:
    """Run git without its user's configuration of hooks and helpers. Raises ForgeError."""
    helper = ("-c", f"credential.helper={_HELPER}") if token else ()
    env = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", _TOKEN: token}
    try:
        done = subprocess.run(  # noqa: S603 - no shell; the values are the operator's
            ("git", *_OPTIONS, *helper, *words),  # noqa: S607 - as installed
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise ForgeError("there is no program `git`: install it") from None
    except subprocess.TimeoutExpired:
        raise GitCommandError(words[0], f"takes more than {TIMEOUT_S:g} s") from None
    if done.returncode:
        raise GitCommandError(words[0], _describe_failure(done.stderr) or f"exit status {done.returncode}")
    return done.stdout


def _describe_failure(stderr: str) -> str:
    """Its first lines that say something: the last ones are advice to whoever typed the command."""
    lines = (line.strip() for line in stderr.splitlines())
    told = "; ".join([line for line in lines if line and not line.startswith(_NOISE)][:3])
    return "".join(char if char.isprintable() else " " for char in mask(told))[:300]
