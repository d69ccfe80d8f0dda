"""Requests that name a model which the server does not serve, by its log: rule F9."""

import re
from dataclasses import replace

from flettner.lint.recogniser import recogniser
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import text_of

_NAMES = "served_model_name"
_MISSING = r"[Tt]he model [`'](?P<asked>[^`'\s]{1,160})[`'] does not exist"
_EXPLAINED = rf'{_MISSING}|_lora_adapter HTTP/1\.[01]" 404'
_NOT_FOUND = (
    r'"POST (?P<path>/v1/(?:chat/completions|completions|responses|messages|embeddings)) HTTP/1\.[01]" 404\b'
)


def _name_unknown(match: re.Match[str], config: ServeConfig) -> Finding | None:
    names = _served(config)
    if not names or match["asked"] in names:
        return None  # the log is of another start
    return _describe(
        f"requests name the model {match['asked']}, which this server does not serve", names, match
    )


def _suspect_name(match: re.Match[str], config: ServeConfig) -> Finding | None:
    """An access log does not tell what is missing: vLLM answers a wrong name and a wrong task alike."""
    names = _served(config)
    if not names or any(re.search(_EXPLAINED, line) for line in config.log):
        return None
    suspected = _describe(
        f"requests to {match['path']} get 404: they name a model that this server does not serve, or "
        "one that does not do this task",
        names,
        match,
    )
    return replace(suspected, severity="info")


def _describe(why: str, names: tuple[str, ...], match: re.Match[str]) -> Finding:
    return Finding(
        rule="F9",
        severity="warning",
        why=why,
        expects=f"the name {' or '.join(names)} at the client, or that of an adapter; `curl URL/v1/models` "
        "lists them. --served-model-name takes the names that the clients have, several at once",
        evidence={"line": match[0][:200]},
    )


def _served(config: ServeConfig) -> tuple[str, ...]:
    """The names by the flags; empty if they do not tell."""
    given = config.setting.get(_NAMES)
    if given is None:
        return tuple(filter(None, (text_of(config, "model"),)))
    return tuple(str(given).split())


LINTS = (
    recogniser(
        "F9",
        _MISSING,
        _name_unknown,
        reports="requests for a model of another name",
        source=(
            "https://docs.vllm.ai/en/latest/serving/openai_compatible_server/; "
            "vllm/entrypoints/serve/engine/serving.py: 'does not exist'"
        ),
    ),
    recogniser(
        "F9",
        _NOT_FOUND,
        _suspect_name,
        reports="requests that get 404 on a route that the server has",
        source="https://docs.vllm.ai/en/latest/serving/openai_compatible_server/; OpenHands/OpenHands#7805",
    ),
)
