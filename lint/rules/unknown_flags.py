"""Flags and variables that no release of vLLM has: rule V1.

A flag is replaced only where its meaning is known: by the table of what people mean, or as a misspelling. Any
other is an error with the nearest names as a question: without it the server would do something else.
"""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from flettner.lint.rules.flag_values import find_meant_value, find_misfit
from flettner.vllm_facts.deprecated_flags import ENVIRONMENT, RENAMED
from flettner.vllm_facts.flag_parser import GLUED, STRAY, UNNAMED_MODEL, VALUED
from flettner.vllm_facts.flag_table import SHORT, is_switch
from flettner.vllm_facts.knobs import FLAGS, KNOBS
from flettner.vllm_facts.meant_flags import as_switch, find_misspelled, find_nearest, meant_flags
from flettner.vllm_facts.releases.history import (
    describe_range,
    has_flag,
    is_covered,
    is_known_flag,
    read_history,
)
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck, invalid_flags_finding, is_omni
from flettner.vllm_facts.values import Knob, Value, is_same, spell_flag

_OF_VLLM = re.compile(r"VLLM_(?!(?:ASCEND|OPENVINO|HPU|GAUDI|OMNI|NEURON|SPYRE|TPU|METAL|MLX|RBLN)_)[A-Z]")
_ALIKE = 0.75  # of 1
_WRITE = "write the flag that is meant, or leave it out"
PARSER = "vllm/utils/argparse_utils.py: FlexibleArgumentParser (exit code 2)"


def is_unknown(knob: Knob) -> bool:
    name = knob.partition(".")[0]
    return name not in {GLUED, STRAY, UNNAMED_MODEL, VALUED} and not (
        name in FLAGS or name in KNOBS or name in RENAMED or is_known_flag(name)
    )


def _check_unknown(config: ServeConfig) -> Iterable[Finding]:
    if is_omni(config):
        return
    for knob in config.setting:
        if is_unknown(knob):
            yield _unknown_flag_finding(config, knob)


def _unknown_flag_finding(config: ServeConfig, knob: Knob) -> Finding:
    """A release that is not covered may know more flags, so there it is a warning."""
    name = knob.partition(".")[0]
    to = _find_meant(config, knob)
    if not config.version:
        releases = describe_range()
    elif is_covered(config.version):
        releases = config.version
    else:
        releases = f"{describe_range()}, {config.version} was not looked at"
    return invalid_flags_finding(
        f"{spell_flag(name)} is no flag of vLLM {releases}{_ask(config, name)}",
        {knob: None, **to} if to is not None else {},
        severity="warning" if config.version and not is_covered(config.version) else "error",
        expects=_how(name) if to == {} else "" if to else _how(name) or _WRITE,
    )


def _find_meant(config: ServeConfig, knob: Knob) -> dict[Knob, Value] | None:
    """The flags that stand for it in this release; None if the user has to say."""
    name, dot, rest = knob.partition(".")
    value = config.setting[knob]
    table = meant_flags()
    spelled = name if name in table else _find_spelled(name)
    if spelled is None or (dot and spelled in table):
        return None
    meant: Mapping[Knob, Value] | None
    if spelled in table:
        meant = table[spelled].change(value)
    elif spelled in RENAMED and not has_flag(spelled, config.version or "0"):
        meant = {
            flag: new for flag, new in RENAMED[spelled].changes(spelled, value).items() if new is not None
        }
    else:
        meant = {spelled + dot + rest: value}
    fitted = [_fit(config, flag, new) for flag, new in (meant or {}).items()]
    if meant is None or None in fitted:
        return None
    return {flag: new for part in fitted if part for flag, new in part.items()}


def _fit(config: ServeConfig, flag: Knob, value: Value) -> dict[Knob, Value] | None:
    """The flag with a value that this release takes; None if it has no such flag or refuses the value."""
    first, given = flag.partition(".")[0], config.setting.get(flag)
    if has_flag(first, config.version) is False or (flag != first and config.setting.get(first) is not None):
        return None
    if is_switch(flag):
        value = as_switch(value)
        if not isinstance(value, bool):
            return None
    if find_misfit(config, flag, value):
        value = find_meant_value(config, flag, value)
    if value is None or (given is not None and not is_same(given, value)):
        return None
    return {} if given is not None else {flag: value}


def _ask(config: ServeConfig, name: str) -> str:
    table = meant_flags()
    spelled = name if name in table else _find_spelled(name)
    if spelled is not None and spelled in table and table[spelled].needless:
        return ""
    if spelled is not None:
        near = [table[spelled].by if spelled in table else spelled]
    else:
        flags = read_history().flags
        near = find_nearest(name, [flag for flag in flags if has_flag(flag, config.version or _newest())])
    spelled_flags = list(map(spell_flag, near))
    listed = ", ".join(spelled_flags[:-1]) + " or " * (len(near) > 1) + "".join(spelled_flags[-1:])
    return f"; did you mean {listed}?" if near else ""


def _find_spelled(name: str) -> Knob | None:
    """The flag of which the name is the short form with a dash too many, or a misspelling."""
    return SHORT.get(name) or find_misspelled(name)


def _newest() -> str:
    return ".".join(map(str, read_history().releases[-1]))


def _how(name: str) -> str:
    meant = meant_flags().get(name) or meant_flags().get(find_misspelled(name) or "")
    return meant.how if meant else ""


def _check_unknown_variables(config: ServeConfig) -> Iterable[Finding]:
    """Names as of vLLM's own variables that it does not read, apart from those of its plugins."""
    if config.version and not is_covered(config.version):
        return
    known = read_history().variables
    for name in sorted(config.env):
        if name in known or name in ENVIRONMENT or not _OF_VLLM.match(name):
            continue
        near = get_close_matches(name, known, n=2, cutoff=_ALIKE)
        yield Finding(
            rule="V1",
            why=f"no release of vLLM {describe_range()} reads {name}: it has no effect",
            expects=_name_meant_flag(name)
            or (
                f"is {' or '.join(near)} meant?"
                if near
                else "take it out, unless a plugin or a script reads it"
            ),
            risks="none",
        )


def _name_meant_flag(variable: str) -> str:
    """VLLM_MAX_MODEL_LEN looks like the flag, which no variable sets."""
    flag = variable.removeprefix("VLLM_").lower()
    if not is_known_flag(flag):
        return ""
    return f"{spell_flag(flag)} on the command line says it; the variable counts only if a script reads it"


def _sets_variables(config: ServeConfig) -> bool:
    return any(map(_OF_VLLM.match, config.env))


LINTS = (
    DeploymentCheck(
        rules=("V1",),
        find=_check_unknown,
        reports="flags that no release has: misspelled ones, and those of other servers, with what they mean",
        source=PARSER,
        needs=Needs(facts=("flags",)),
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_unknown_variables,
        reports="variables that no release reads",
        source="vllm/platforms/interface.py: 'Unknown vLLM environment variable detected'",
        needs=Needs(applies=_sets_variables),
    ),
)
