"""Bearer tokens. The tokens file holds only their hashes, one JSON object per line."""

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from flettner.agent.config.listen import Role, check_principal
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.ports import Now
from flettner.primitives.files import read_bounded, replacing

RANKS: dict[Role, int] = {"viewer": 0, "operator": 1, "admin": 2}
MAX_FILE = 2**20  # bytes: some four thousand tokens

SHAPE = re.compile(r"fl_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")
DUMMY_HASH = hashlib.sha256(b"").hexdigest()  # compared for an unknown token, for constant time


class Holder(BaseModel):
    """An authenticated caller with its role. `targets` None: all targets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    role: Role
    principal: Annotated[str, AfterValidator(check_principal)]
    targets: tuple[str, ...] | None = None

    def allows(self, role: Role) -> bool:
        return RANKS[self.role] >= RANKS[role]

    def sees(self, target: str) -> bool:
        return self.targets is None or target in self.targets


class Token(Holder):
    """One line of the tokens file. The token itself is shown once, at creation, and never stored."""

    id: str = Field(pattern=r"^[0-9a-f]{8}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    targets: tuple[str, ...] | None = Field(default=None, min_length=1, max_length=100)
    expires: AwareDatetime | None = None
    made_at: datetime | None = None


def _hash(token: str) -> str:
    """Plain SHA-256: a token has 256 random bits, so a slow hash adds nothing."""
    return hashlib.sha256(token.encode()).hexdigest()


def mint_token(
    *,
    role: Role,
    principal: str,
    made_at: datetime,
    expires: datetime | None,
    targets: tuple[str, ...] | None = None,
) -> tuple[str, Token]:
    """A new token: the text for its user, and the line for the tokens file."""
    name, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
    text = f"fl_{name}_{secret}"
    return text, Token(
        id=name,
        sha256=_hash(text),
        role=role,
        principal=principal,
        targets=targets,
        expires=expires,
        made_at=made_at,
    )


def load_tokens(path: Path) -> dict[str, Token]:
    """Tokens by id. Raises ConfigError with the file and the line number, never with the line's text."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ConfigError(
                    f"{path}: writable by other users, who could add tokens; run chmod 600 {path}"
                )
            content = read_bounded(file, MAX_FILE)
        lines = content.decode("utf-8").split("\n")
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: no such tokens file; create a token with"
            f" `flettner token new --tokens-file {path} --role operator --name NAME`"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the tokens file cannot be read: {error}") from error
    tokens: dict[str, Token] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            token = Token.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ConfigError(
                f"{path} line {number}: {where}: {first['msg']}; correct or remove the line"
            ) from error
        if token.id in tokens:
            raise ConfigError(
                f"{path} line {number}: duplicate token id {token.id}; remove one of the two lines"
            )
        tokens[token.id] = token
    return tokens


def store_tokens(path: Path, tokens: Sequence[Token]) -> None:
    """Replace the file atomically (mode 0600): after a crash it is the old or the new one."""
    text = "".join(token.model_dump_json(exclude_none=True) + "\n" for token in tokens)
    with replacing(path, mode=0o600, durable=True) as draft:
        if os.geteuid() == 0 and path.exists():  # root edits it; the daemon's user must still read it
            os.fchown(draft.fileno(), path.stat().st_uid, path.stat().st_gid)
        draft.write(text.encode())


class Tokens:
    """The tokens file in memory. `path` None: no token is valid."""

    def __init__(self, path: Path | None, now: Now) -> None:
        self._path = path
        self._now = now
        self._tokens: dict[str, Token] = {}
        self.reload()

    def reload(self) -> None:
        """Read the file again. Raises ConfigError; the previous tokens then stay in force."""
        self._tokens = {} if self._path is None else load_tokens(self._path)

    def describe_fault(self, text: str) -> str:
        """Why a token has no holder, for the audit journal; names at most the token's id."""
        shape = SHAPE.fullmatch(text)
        token = self._tokens.get(shape[1]) if shape else None
        if token is None or not hmac.compare_digest(_hash(text), token.sha256):
            return "an unknown token"
        return f"token {token.id}, which has expired"

    def holder(self, text: str) -> Token | None:
        """The holder of this token; None if the token is unknown, wrong or expired."""
        shape = SHAPE.fullmatch(text)
        token = self._tokens.get(shape[1]) if shape else None
        is_valid = hmac.compare_digest(_hash(text) if shape else "", token.sha256 if token else DUMMY_HASH)
        if token is None or not is_valid:
            return None
        if token.expires is not None and self._now().astimezone(UTC) >= token.expires:
            return None
        return token
