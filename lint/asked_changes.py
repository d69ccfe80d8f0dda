"""The changes that a message of vLLM asks for in words, `set --flag value`. Pure."""

import re
from collections.abc import Iterator

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import parse_setting
from flettner.vllm_facts.flag_table import TEXTS, is_switch
from flettner.vllm_facts.releases import TABLE
from flettner.vllm_facts.releases.history import has_flag, values_in
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.values import Knob, Value

_FEWER = r"reduc(?:e|ing)|lower(?:ing)?|decreas(?:e|ing)"
_MORE = r"increas(?:e|ing)|rais(?:e|ing)"
_BEFORE = r"(?:^|[.:;!?,(] ?|\b(?:please|must|should|consider|try|either|or|and|to|can|by) )"
"""Behind these words a verb is an instruction; "when using --flag" and "cannot be used with" are none."""

_ASKED = re.compile(
    rf"{_BEFORE}(?:also |either |explicitly )?"
    r"(?P<verb>(?:re-?)?run with|(?:re)?start (?:\w+ ){1,2}with|(?:en|dis)able (?:\w+ ){1,3}with"
    rf"|set(?:ting)?|us(?:e|ing)|pass(?:ing)?|specify(?:ing)?|add(?:ing)?|remove|{_FEWER}|{_MORE}) "
    r"(?:the )?(?:flag |option |argument |[a-z]{1,20}(?:_[a-z\d]{1,20}){1,6} \()?[`'\"]?"
    r"(?:(?P<flag>--?[a-z][\w-]{1,60}(?:\.\w{1,60})?)|(?P<name>[a-z]{1,20}(?:_[a-z\d]{1,20}){1,6})(?==))"
    r"\)?(?:(?P<by>=| to (?:at (?:least|most) )?| )['\"]?(?P<value>[\w./-]{0,60}\w))?",
    re.IGNORECASE,
)
_MUST = re.compile(
    r"[`'\"]?\b(?P<name>[a-z]{1,20}(?:_[a-z\d]{1,20}){1,6})[`'\"]? must be (?:set to )?"
    r"[`'\"](?P<value>[\w.-]{1,60})[`'\"]"
)
"""A choice that the message names as the only one, or as the first."""

_SENTENCE = re.compile(r"(?<=[.!?;]) +")
_OPENS = re.compile(r"allow|insecure|trust_|skip_|_embeds$", re.IGNORECASE)
"""Flags that lift a guard or let clients send more: no message changes them."""

_NO_WORD = re.compile(r"\A(?:[A-Z][A-Z\d_]+|[^\W\d_]*[_\d]\w*)")
_CONDITION = re.compile(r"(?:For|If|When|On|In) ")
"""A sentence that begins so holds for some servers only."""

_OF_THE_LAYOUT = frozenset(
    {"model", "tokenizer", "api_key", "host", "port", "headless", "grpc", "nnodes", "node_rank", "device_ids"}
)
"""What the server is and where it runs: no message changes it."""

_TRUTHS = {"true": True, "false": False}


def read_asked_changes(message: str, config: ServeConfig) -> dict[Knob, Value]:
    """Flags with the values that the first such sentence names; of alternatives, the first.

    Without a literal value, or where the command has it already, there is no change.
    """
    for sentence in _SENTENCE.split(message):
        asked = dict(_read_sentence(sentence, config))
        if asked:
            first = next(iter(asked))
            return {first: asked[first]} if re.search(r"\bor\b", sentence) else asked
    return {}


def _read_sentence(sentence: str, config: ServeConfig) -> Iterator[tuple[Knob, Value]]:
    if _CONDITION.match(sentence):
        return
    for match in _ASKED.finditer(sentence):
        for knob, value in _parse(match).items():
            if _is_sound(knob, value, config) and _leads_on(match["verb"], knob, value, config):
                yield knob, value
    for match in _MUST.finditer(sentence):
        knob, choice = match["name"], match["value"]
        known, present = values_in(knob, config.version), config.setting.get(knob)
        taken = not known or choice in known
        if taken and present not in (None, choice) and _is_sound(knob, choice, config):
            yield knob, choice


def _parse(match: re.Match[str]) -> dict[Knob, Value]:
    if match["name"] and match["name"] not in TABLE:
        return {}
    flag = match["flag"] or f"--{match['name'].replace('_', '-')}"
    value, by = match["value"] or "", (match["by"] or "").strip()
    base = flag.lstrip("-").partition(".")[0].replace("-", "_")
    knob = base.removeprefix("no_")
    if match["verb"].lower() == "remove":
        return {knob: None}
    if is_switch(knob) and knob in TABLE and "." not in flag:
        truth = _TRUTHS.get(value.lower(), True) if by == "=" else True
        return {knob: truth is (base == knob)}
    if not value or (knob in TEXTS and by != "=" and not _NO_WORD.fullmatch(value)):
        return {}  # the word behind it may be one of the sentence
    try:
        return parse_setting(["vllm", "serve", "m", f"{flag}={value}"])
    except FlagError:
        return {}


def _is_sound(knob: Knob, value: Value, config: ServeConfig) -> bool:
    """Whether the release has the flag and takes the value, and a message may ask for it."""
    name = knob.partition(".")[0]
    if name not in TABLE or name in _OF_THE_LAYOUT or _OPENS.search(name):
        return False
    if has_flag(name, config.version) is False:
        return False
    if value is None:
        return knob in config.setting
    flag = TABLE[name]
    if flag.choices and name == knob:
        return value in (values_in(name, config.version) or flag.choices)
    if name != knob:
        return True
    if flag.type in {"int", "float", "size"}:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return flag.type != "json" or isinstance(value, dict | list)


def _leads_on(verb: str, knob: Knob, value: Value, config: ServeConfig) -> bool:
    """Whether the value is new to the command and, as the verb says, smaller or larger than the present."""
    present = config.setting.get(knob)
    if isinstance(present, int | float) and isinstance(value, int | float) and present is not True:
        if re.fullmatch(_FEWER, verb, re.IGNORECASE):
            return value < present
        if re.fullmatch(_MORE, verb, re.IGNORECASE):
            return value > present
    if knob not in config.setting:
        return value is not None and not (value is False and TABLE[knob.partition(".")[0]].default is False)
    return present != value
