"""Kubeconfig files: written for the clients of tests, and read for a borrowed cluster."""

import json
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.support.kubernetes.api import Json


def write(path: Path, *, url: str, ca: Path, user: str, token: str, namespace: str) -> Path:
    """In JSON, which is YAML."""
    cluster: Json = {"server": url, "certificate-authority": str(ca)}
    context = {"cluster": "test", "user": user, "namespace": namespace}
    content: Json = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "test", "context": context}],
        "current-context": "test",
    }
    path.write_text(json.dumps(content))
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """`certificate`: of the client, with its key; None: it has a token."""

    url: str
    ca: Path
    token: str = ""
    certificate: tuple[Path, Path] | None = None

    @classmethod
    def read(cls, file: Path, folder: Path) -> "Access":
        """Of the current context; certificates inside the file go into the folder.

        Raises KeyError for an account that is neither a token nor a certificate, such as a plugin.
        """
        content: Json = yaml.safe_load(file.read_text(encoding="utf-8"))
        context = _named(content, "context", content["current-context"])
        cluster = _named(content, "cluster", context["cluster"])
        user = _named(content, "user", context["user"])

        def place(source: Json, key: str) -> Path:
            if data := source.get(f"{key}-data"):
                written = folder / f"{key}.pem"
                written.write_bytes(b64decode(data))
                written.chmod(0o600)
                return written
            return Path(file.parent, source[key]).resolve()

        ca = place(cluster, "certificate-authority")
        if token := user.get("token"):
            return cls(url=cluster["server"], ca=ca, token=token)
        return cls(
            url=cluster["server"],
            ca=ca,
            certificate=(place(user, "client-certificate"), place(user, "client-key")),
        )


def _named(content: Json, kind: str, name: str) -> Json:
    document: Json = next(entry for entry in content[f"{kind}s"] if entry["name"] == name)[kind]
    return document
