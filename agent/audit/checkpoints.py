"""Signed checkpoints: every so many entries one that signs all before it, with a key that stays on this host.

Who edits an entry and chains all that follow anew, which the hashes alone do not show, cannot sign it. What a
signature cannot show: that the end was cut off, and what whoever has the key wrote. For that a head is noted
elsewhere (docs/audit.md).
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.audit.records import JournalRecord
from agent.domain.errors import JournalError

if TYPE_CHECKING:  # 30 ms that only those need who sign or check
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ACTION = "audit.checkpoint"
EVERY = 100
"""Entries from one checkpoint to the next."""
MOST_UNSIGNED = 2 * EVERY
"""More entries than this without a checkpoint, and somebody has taken it away, or the daemon had no key."""
KEY = "audit.key"


@dataclass(frozen=True, slots=True)
class Signer:
    key: "Ed25519PrivateKey"

    @property
    def id(self) -> str:
        return id_of(self.key.public_key())

    @property
    def trusted(self) -> "Mapping[str, Ed25519PublicKey]":
        return {self.id: self.key.public_key()}

    def mark(self, seq: int, head: str) -> dict[str, str | int]:
        """What the checkpoint after entry `seq` says."""
        signature = self.key.sign(_signed(seq, head)).hex()
        return {"seq": seq, "hash": head, "signer": self.id, "signature": signature}

    def public(self) -> str:
        """The public key as PEM."""
        from cryptography.hazmat.primitives import serialization as s  # noqa: PLC0415 - as above

        pem = self.key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
        return pem.decode("ascii")


def _signed(seq: int, head: str) -> bytes:
    return f"trimtab audit checkpoint\n{seq}\n{head}\n".encode("ascii")


def id_of(key: "Ed25519PublicKey") -> str:
    """The first 16 digits of the SHA-256 of the raw public key."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def problem_of(record: JournalRecord, trusted: "Mapping[str, Ed25519PublicKey]") -> str:
    """What is wrong with a checkpoint; empty when it is good. Without keys only what it says is looked at."""
    said = record["after"]
    if (said.get("seq"), said.get("hash")) != (record["seq"] - 1, record["prev"]):
        return "it is a checkpoint of another entry than the one before it"
    if not trusted:
        return ""
    key = trusted.get(str(said.get("signer")))
    if key is None:
        return f"it is signed with a key that was not given, {said.get('signer')}"
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - as above

    try:
        key.verify(bytes.fromhex(str(said.get("signature"))), _signed(record["seq"] - 1, record["prev"]))
    except (InvalidSignature, ValueError):
        return "its signature is not that key's: what stands before it was written by somebody else"
    return ""


def find(state_dir: Path) -> Signer | None:
    """The key that systemd hands over (LoadCredential=audit.key:...), or that of the state directory."""
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    handed_over = Path(credentials) / KEY if credentials else None
    if handed_over is not None and handed_over.exists():
        return load(handed_over)
    own = state_dir / KEY
    if not own.exists():
        return None
    if (mode := own.stat().st_mode) & 0o077:
        raise JournalError(f"{own}: others may read it (mode {mode & 0o777:o}): chmod 600, or make a new one")
    return load(own)


def load(path: Path) -> Signer:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise JournalError(f"{path}: is not a key that can be read: {type(error).__name__}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise JournalError(f"{path}: is not an Ed25519 key: make one with `trimtab audit key`")
    return Signer(key)


def make(path: Path) -> Signer:
    """A new key in a new file that only its owner may read."""
    from cryptography.hazmat.primitives import serialization as s  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise JournalError(f"{path}: cannot be written: {error.strerror}") from error
    return Signer(key)


def trusted(path: Path) -> "Mapping[str, Any]":
    """The public keys of a PEM file, by id."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415

    end = b"-----END PUBLIC KEY-----"
    try:
        parts = [part.strip() + b"\n" + end for part in path.read_bytes().split(end)[:-1]]
        keys = [load_pem_public_key(part) for part in parts]
    except (OSError, ValueError) as error:
        raise JournalError(f"{path}: holds no public key that can be read: {error}") from error
    found = {id_of(key): key for key in keys if isinstance(key, Ed25519PublicKey)}
    if not found or len(found) != len(keys):
        raise JournalError(f"{path}: must hold Ed25519 public keys, as `trimtab audit key` prints them")
    return found
