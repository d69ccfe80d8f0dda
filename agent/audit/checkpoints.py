"""Signed checkpoints: at an interval, an entry signs all earlier entries with a key that stays on this host.

The hash chain alone does not reveal an edit after which all later entries were chained again; without the key
such an edit cannot be signed. A signature does not reveal that the end was cut off, nor a forgery by the
holder of the key: for these a head is pinned elsewhere (docs/audit.md).
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flettner.agent.audit.records import JournalRecord
from flettner.agent.domain.errors import JournalError
from flettner.primitives.files import create_file

if TYPE_CHECKING:  # its import takes 30 ms, needed only to sign or verify
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ACTION = "audit.checkpoint"
INTERVAL = 100
"""Entries from one checkpoint to the next."""
MAX_UNSIGNED = 2 * INTERVAL
"""More entries than this without a checkpoint: it was removed, or the daemon had no key."""
KEY_FILE = "audit.key"


@dataclass(frozen=True, slots=True)
class Signer:
    key: "Ed25519PrivateKey"

    @property
    def id(self) -> str:
        return key_id(self.key.public_key())

    @property
    def public_keys(self) -> "Mapping[str, Ed25519PublicKey]":
        return {self.id: self.key.public_key()}

    def sign(self, seq: int, head: str) -> dict[str, str | int]:
        """Build the content of the checkpoint after entry `seq`."""
        signature = self.key.sign(_signed_bytes(seq, head)).hex()
        return {"seq": seq, "hash": head, "signer": self.id, "signature": signature}

    def public_pem(self) -> str:
        """Return the public key as PEM."""
        from cryptography.hazmat.primitives import serialization as s  # noqa: PLC0415 - as above

        pem = self.key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
        return pem.decode("ascii")


def _signed_bytes(seq: int, head: str) -> bytes:
    return f"flettner audit checkpoint\n{seq}\n{head}\n".encode("ascii")


def key_id(key: "Ed25519PublicKey") -> str:
    """Return the first 16 hex digits of the SHA-256 of the raw public key."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def find_problem(record: JournalRecord, keys: "Mapping[str, Ed25519PublicKey]") -> str:
    """Describe what is wrong with a checkpoint; empty if it is valid. Signatures need `keys`."""
    content = record["after"]
    if (content.get("seq"), content.get("hash")) != (record["seq"] - 1, record["prev"]):
        return "it is a checkpoint of another entry than the one before it"
    if not keys:
        return ""
    key = keys.get(str(content.get("signer")))
    if key is None:
        return f"it is signed with a key that was not given, {content.get('signer')}"
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - as above

    try:
        key.verify(
            bytes.fromhex(str(content.get("signature"))), _signed_bytes(record["seq"] - 1, record["prev"])
        )
    except (InvalidSignature, ValueError):
        return "its signature does not match that key: the entries before it are forged"
    return ""


def find_signer(state_dir: Path) -> Signer | None:
    """Load the key of systemd's credentials (LoadCredential=audit.key:...), else of the state directory."""
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    credential = Path(credentials) / KEY_FILE if credentials else None
    if credential is not None and credential.exists():
        return load_signer(credential)
    own = state_dir / KEY_FILE
    if not own.exists():
        return None
    if (mode := own.stat().st_mode) & 0o077:
        raise JournalError(
            f"{own}: other users can read it (mode {mode & 0o777:o}): chmod 600, or create a new key"
        )
    return load_signer(own)


def load_signer(path: Path) -> Signer:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise JournalError(f"{path}: is not a readable key: {type(error).__name__}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise JournalError(f"{path}: is not an Ed25519 key: create one with `flettner audit key`")
    return Signer(key)


def create_signer(path: Path) -> Signer:
    """Create a key in a new file that only its owner can read."""
    from cryptography.hazmat.primitives import serialization as s  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    try:
        create_file(path, pem, mode=0o600)
    except OSError as error:
        raise JournalError(f"{path}: cannot be written: {error.strerror}") from error
    return Signer(key)


def load_public_keys(path: Path) -> "Mapping[str, Any]":
    """Load the public keys of a PEM file, by id."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415

    end = b"-----END PUBLIC KEY-----"
    try:
        parts = [part.strip() + b"\n" + end for part in path.read_bytes().split(end)[:-1]]
        keys = [load_pem_public_key(part) for part in parts]
    except (OSError, ValueError) as error:
        raise JournalError(f"{path}: holds no readable public key: {error}") from error
    by_id = {key_id(key): key for key in keys if isinstance(key, Ed25519PublicKey)}
    if not by_id or len(by_id) != len(keys):
        raise JournalError(f"{path}: must hold Ed25519 public keys, as `flettner audit key` prints them")
    return by_id
