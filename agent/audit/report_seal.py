"""The seal of a change report: the hash of the page, and a signature by the key of the journal's checkpoints.

The page ends with the seal, which covers every byte before it.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from flettner.agent.audit.checkpoints import Signer

_BEGINS = b"<!-- the seal covers every byte above -->\n"
_SEAL = re.compile(
    rb'data-sha256="([0-9a-f]{64})"(?: data-signer="([0-9a-f]{16})" data-signature="([0-9a-f]{128})")?'
)


def seal(page: str, signer: Signer | None) -> bytes:
    """Return the page with its seal; without a key it has a hash only, which anybody can compute again."""
    content = page.encode() + _BEGINS
    digest = hashlib.sha256(content).hexdigest()
    marks = f'data-sha256="{digest}"'
    says = "not signed: there is no journal key (<code>flettner audit key</code>)"
    if signer is not None:
        signature = signer.key.sign(_signed_bytes(digest)).hex()
        marks += f' data-signer="{signer.id}" data-signature="{signature}"'
        says = f"signed by the journal's key {signer.id} (<code>flettner report --verify FILE --key</code>)"
    footer = f"<footer {marks}><p>SHA-256 <code>{digest}</code>, {says}</p></footer></html>\n"
    return content + footer.encode()


def find_problem(sealed: bytes, keys: Mapping[str, Any]) -> str:
    """Why the page is not as it was sealed; empty: it is. Without public `keys` the hash alone decides."""
    content, begins, footer = sealed.partition(_BEGINS)
    seal = _SEAL.search(footer)
    if not begins or seal is None:
        return "it has no seal: it is no change report, or its end is missing"
    digest, signer, signature = (part.decode() if part else "" for part in seal.groups())
    if hashlib.sha256(content + begins).hexdigest() != digest:
        return "its content was changed: it does not have the SHA-256 of its seal"
    if not keys:
        return ""
    if signer not in keys:
        return f"it is signed with a key that was not given, {signer}" if signer else "it is not signed"
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - its import takes 30 ms

    try:
        keys[signer].verify(bytes.fromhex(signature), _signed_bytes(digest))
    except InvalidSignature:
        return "its signature does not match that key: it is forged"
    return ""


def is_signed(sealed: bytes) -> bool:
    seal = _SEAL.search(sealed.partition(_BEGINS)[2])
    return seal is not None and seal[2] is not None


def _signed_bytes(digest: str) -> bytes:
    return f"flettner change report\n{digest}\n".encode("ascii")
