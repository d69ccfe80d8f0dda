"""What a change may name besides performance flags: the image, the program, the environment, the model. Pure.

`image`, `command` and `env.NAME` are no flags, but are named beside them in a change. A server has them in
`Server.start`, apart from its setting; so it has `gpus`, the GPUs that an engine chose for another layout.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from flettner.redaction import secret_name
from flettner.vllm_facts.values import ENV, GPUS, Knob, Setting, Value, is_start

IMAGE, COMMAND, MODEL = "image", "command", "model"
MODEL_KNOBS: Mapping[Knob, str] = {MODEL: "models", "tokenizer": "models", "revision": "revisions"}
"""The flags that choose what is served, with the key of `[targets.upgrades]` that limits each."""
SERVED_NAME = "served_model_name"

AS_IT_IS: Setting = MappingProxyType({})  # the start of a server that no upgrade has changed

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,180}(?:@sha256:[0-9a-f]{64})?")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_ANYTHING = r"[^/@]*"


def is_upgrade(name: Knob) -> bool:
    """Whether only an administrator may ask for it, within `[targets.upgrades]`."""
    return (is_start(name) and name != GPUS) or name in MODEL_KNOBS


def upgrades_in(to: Mapping[Knob, Value]) -> tuple[Knob, ...]:
    return tuple(filter(is_upgrade, to))


def flags_in(to: Mapping[Knob, Value]) -> Setting:
    return {name: value for name, value in to.items() if not is_start(name)}


def start_in(to: Mapping[Knob, Value]) -> Setting:
    """The image, the program, the environment and the GPUs in a change."""
    return {name: value for name, value in to.items() if is_start(name)}


def without_gpus(to: Mapping[Knob, Value]) -> Setting:
    """A change without the GPUs, which the engine has chosen, not who proposed it."""
    return {name: value for name, value in to.items() if name != GPUS}


def env_in(start: Setting) -> dict[str, Value]:
    """The variables that a start sets, by name; None: it unsets the variable."""
    return {name.removeprefix(ENV): value for name, value in start.items() if name.startswith(ENV)}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeLimits:
    """`[targets.upgrades]`: patterns in which `*` stands for any text without `/` and `@`; empty: nothing.

    `env`: names, without patterns.
    """

    images: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    revisions: tuple[str, ...] = ()
    env: tuple[str, ...] = ()

    def refusal(self, name: Knob, value: Value) -> str:
        """Why the change is refused, with what is allowed and what to do; empty if it is allowed."""
        if name.startswith(ENV):
            return self._refuse_variable(name.removeprefix(ENV), value)
        if not isinstance(value, str):
            return f"{name}={value} was requested: {name} is a text; request one"
        if why := next(_misfits(name, value), ""):
            return f"{name}={value} was requested: {why}"
        key = MODEL_KNOBS.get(name, f"{name}s")
        allowed: tuple[str, ...] = getattr(self, key)
        if any(matches(pattern, value) for pattern in allowed):
            return ""
        listed = ", ".join(allowed) or "none"
        return (
            f"{name}={value} was requested: [targets.upgrades] {key} allows {listed}; request what it "
            "allows, or add a pattern there and restart flettner"
        )

    def _refuse_variable(self, variable: str, value: Value) -> str:
        """The value is not shown: nobody has said that it is no secret."""
        if variable in self.env and value is not None and not isinstance(value, str):
            return f'a change of {ENV}{variable} was requested: its value is a text, as "1", or null'
        if variable in self.env and isinstance(value, str) and not value.isprintable():
            return f"a change of {ENV}{variable} was requested: its value has characters that nobody sees"
        if variable in self.env:
            return ""
        listed = ", ".join(self.env) or "none"
        return (
            f"a change of {ENV}{variable} was requested: [targets.upgrades] env allows {listed}; "
            "request one of these, or add its name there and restart flettner"
        )


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text fits the pattern, in which `*` stands for any text without `/` and `@`."""
    expression = _ANYTHING.join(re.escape(part) for part in re.split(r"\*+", pattern))
    return re.fullmatch(expression, text) is not None


def find_bad_variable(name: str) -> str:
    """Why a change may not name the variable; empty if it may."""
    if _ENV_NAME.fullmatch(name) is None:
        return f"{name!r} is not the name of an environment variable"
    if secret_name(name):
        return f"{name} names a secret, and the audit journal keeps the values of changes: set it by hand"
    return ""


def _misfits(name: Knob, value: str) -> Iterator[str]:
    if name == IMAGE and _IMAGE.fullmatch(value) is None:
        yield "it is no name of an image; request REPOSITORY:TAG or REPOSITORY@sha256:DIGEST"
    if name == COMMAND and not value.startswith("/"):
        yield "it is not the full path of a program; request one, such as /opt/vllm-0.33/bin/vllm"
    if (
        {".", ".."} & {*value.split("/")}
        or value.startswith("-")
        or value.endswith(("/", ":"))
        or not value.strip()
    ):
        yield "it is empty, starts with -, ends with / or :, or has a part . or ..; request the name itself"
    if not value.isprintable():
        yield f"{value!r} has characters that nobody sees; request the name without them"
