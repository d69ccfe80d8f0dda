"""Who may call: bearer tokens of which only hashes are kept, one JSON object a line."""

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from agent.config.listen import Role
from agent.domain.errors import ConfigError
from agent.domain.ports import Now

RANKS: dict[Role, int] = {"viewer": 0, "operator": 1, "admin": 2}
LARGEST_FILE = 2**20  # bytes: some four thousand tokens

SHAPE = re.compile(r"tt_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")
NOBODY = hashlib.sha256(b"nobody").hexdigest()


class Holder(BaseModel):
    """Who asks, and what they may. `targets` None: all of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    role: Role
    principal: str = Field(min_length=1, max_length=100)
    targets: tuple[str, ...] | None = None

    def allows(self, role: Role) -> bool:
        return RANKS[self.role] >= RANKS[role]

    def sees(self, target: str) -> bool:
        return self.targets is None or target in self.targets


class Token(Holder):
    """One line of the tokens file. The token itself is shown once, when it is made, and kept nowhere."""

    id: str = Field(pattern=r"^[0-9a-f]{8}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    targets: tuple[str, ...] | None = Field(default=None, min_length=1, max_length=100)
    expires: AwareDatetime | None = None
    made_at: datetime | None = None


def _hash(token: str) -> str:
    """Plain SHA-256: 256 random bits need no slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()


def mint(
    *,
    role: Role,
    principal: str,
    made_at: datetime,
    expires: datetime | None,
    targets: tuple[str, ...] | None = None,
) -> tuple[str, Token]:
    """(the token to hand over, the line to keep)."""
    name, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
    text = f"tt_{name}_{secret}"
    return text, Token(
        id=name,
        sha256=_hash(text),
        role=role,
        principal=principal,
        targets=targets,
        expires=expires,
        made_at=made_at,
    )


def load(path: Path) -> dict[str, Token]:
    """By id. Raises ConfigError naming the file and the line; the line's text is never repeated."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ConfigError(f"{path}: others may write it and so make tokens; chmod 600 {path}")
            content = file.read(LARGEST_FILE + 1)
        lines = content.decode("utf-8").split("\n")
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: no such tokens file; make a token with"
            f" `trimtab token new --tokens-file {path} --role operator --name NAME`"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the tokens file cannot be read: {error}") from error
    if len(content) > LARGEST_FILE:
        raise ConfigError(f"{path}: is larger than {LARGEST_FILE} bytes: this is not a tokens file")
    tokens: dict[str, Token] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            token = Token.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ConfigError(f"{path} line {number}: {where}: {first['msg']}; mend or remove it") from error
        if token.id in tokens:
            raise ConfigError(f"{path} line {number}: token id {token.id} is there twice; remove one")
        tokens[token.id] = token
    return tokens


def store(path: Path, tokens: Sequence[Token]) -> None:
    """Replace the file at once (mode 0600): a crash leaves the old or the new one, never half of it."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    text = "".join(token.model_dump_json(exclude_none=True) + "\n" for token in tokens)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if os.geteuid() == 0 and path.exists():  # root mends it, the daemon's own user goes on reading it
                os.fchown(descriptor, path.stat().st_uid, path.stat().st_gid)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class Tokens:
    """The tokens file in memory. `path` None: no token is valid."""

    def __init__(self, path: Path | None, now: Now) -> None:
        self._path = path
        self._now = now
        self._tokens: dict[str, Token] = {}
        self.reload()

    def reload(self) -> None:
        """Read the file again. Raises ConfigError; what was in force then stays in force."""
        self._tokens = {} if self._path is None else load(self._path)

    def fault(self, text: str) -> str:
        """What is wrong with a token that has no holder, for the audit; of the token only the id."""
        shape = SHAPE.fullmatch(text)
        token = self._tokens.get(shape[1]) if shape else None
        if token is None or not hmac.compare_digest(_hash(text), token.sha256):
            return "an unknown token"
        return f"token {token.id}, which has expired"

    def holder(self, text: str) -> Token | None:
        """Whose token this is; None when it is unknown, wrong, or no longer valid."""
        shape = SHAPE.fullmatch(text)
        token = self._tokens.get(shape[1]) if shape else None
        known = hmac.compare_digest(_hash(text) if shape else "", token.sha256 if token else NOBODY)
        if token is None or not known:
            return None
        if token.expires is not None and self._now().astimezone(UTC) >= token.expires:
            return None
        return token
