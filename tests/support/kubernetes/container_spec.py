"""What a container runs: its command line and environment, resolved as the kubelet does."""

import base64
import re
from collections.abc import Mapping, Sequence

from tests.support.kubernetes.api import Api, ApiError, Json

ENTRYPOINT = ("vllm", "serve")  # of vllm/vllm-openai
_REFERENCE = re.compile(r"\$(\$|\(([-._a-zA-Z0-9]+)\))")


class ConfigError(Exception):
    """CreateContainerConfigError: a ConfigMap or Secret, or a key of it, is missing."""


def command_line(container: Json, environment: Mapping[str, str]) -> list[str]:
    """`command` replaces the image's entry point, `args` its arguments; both may name variables."""
    words: Sequence[str] = [*container.get("command", ENTRYPOINT), *container.get("args", ())]
    return [expand(word, environment) for word in words]


def expand(text: str, environment: Mapping[str, str]) -> str:
    """`$(NAME)` is replaced if NAME is known; `$$` is a dollar sign."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else environment.get(match[2], match[0])

    return _REFERENCE.sub(value, text)


async def environment_of(container: Json, pod: Json, address: str, api: Api) -> dict[str, str]:
    """`env` and `envFrom`. Raises ConfigError."""
    environment: dict[str, str] = {}
    namespace = pod["metadata"]["namespace"]
    for source in container.get("envFrom", ()):
        for kind in ("configMap", "secret"):
            if reference := source.get(f"{kind}Ref"):
                values = await values_of(api, namespace, kind, reference["name"])
                environment |= {source.get("prefix", "") + key: value for key, value in values.items()}
    for entry in container.get("env", ()):
        name, source = entry["name"], entry.get("valueFrom", {})
        if field := source.get("fieldRef"):
            environment[name] = _field(field["fieldPath"], pod, address)
        elif reference := source.get("configMapKeyRef") or source.get("secretKeyRef"):
            kind = "configMap" if "configMapKeyRef" in source else "secret"
            values = await values_of(
                api, namespace, kind, reference["name"], reference.get("optional", False)
            )
            if reference["key"] in values:
                environment[name] = values[reference["key"]]
            elif not reference.get("optional"):
                owner = f"{kind[0].upper()}{kind[1:]} {namespace}/{reference['name']}"
                raise ConfigError(f"couldn't find key {reference['key']} in {owner}")
        else:
            environment[name] = expand(entry.get("value", ""), environment)
    return environment


async def values_of(
    api: Api, namespace: str, kind: str, name: str, optional: object = False
) -> dict[str, str]:
    """The content of a ConfigMap or a Secret (`kind`: "configMap" or "secret")."""
    try:
        document = await api.get(f"/api/v1/namespaces/{namespace}/{kind.lower()}s/{name}")
    except ApiError as error:
        if error.status != 404:
            raise
        if optional:
            return {}
        raise ConfigError(f'{kind.lower()} "{name}" not found') from error
    content = document.get("data", {})
    if kind == "secret":
        return {key: base64.b64decode(value).decode() for key, value in content.items()}
    return dict(content)


def _field(path: str, pod: Json, address: str) -> str:
    fields = {
        "status.podIP": address,
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"]["namespace"],
        "metadata.uid": pod["metadata"]["uid"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
    }
    return str(fields[path])
