"""Prompts that share less than one block of the KV cache of a hybrid model: rule X1."""

import re
from collections.abc import Iterable
from math import ceil

from flettner.lint.recogniser import LOG
from flettner.vllm_facts.log_counts import read_counts
from flettner.vllm_facts.references import V1_ENGINE
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    has_any,
    is_at_least,
    is_older_than,
    is_pooling,
    is_v0_by_default,
    layout,
)
from flettner.vllm_facts.sizing.kv_cache import kv_bytes_per_token
from flettner.vllm_facts.start_facts import LONGEST_LINE, find_last
from flettner.vllm_facts.values import Knob, Value

_CACHING = "enable_prefix_caching"
_LEN, _UNIT = "max_model_len", "prefix_match_unit"
_UNIT_SINCE, _UNIT_READ = (0, 26), (0, 34)  # releases that have the flag, and whose sources were read
_USUAL = 256  # tokens: blocks up to there hold any shared beginning that is worth a cache
_STEP = 16  # tokens, of which a block is a multiple
_AT_ONCE = 4  # requests of full length
_NONE = 1.0  # percent of hits
_LEAST_COUNTS = 3  # with prompts and no hit
_BLOCK = re.compile(r"Setting attention block size to (?P<tokens>\d{1,7}) tokens")
_HITS = re.compile(
    r"Avg prompt throughput: (?P<prompts>\d+(?:\.\d*)?) tokens/s.{0,400}?"
    r"Prefix cache hit rate: (?P<rate>\d+(?:\.\d*)?)%"
)
_LENGTH = re.compile(r"Maximum concurrency for (?P<tokens>[\d,]*\d) tokens per request")


def _check_block(config: ServeConfig) -> Iterable[Finding]:
    """Only a block that is full can be shared: vLLM makes those of hybrid models very long."""
    block = find_block(config)
    if block is None or _UNIT in config.setting:
        return
    on = config.setting.get(_CACHING)
    if on is False or not (on or any("enable_prefix_caching=True" in line for line in config.log)):
        return  # else it is off by default in most releases, which another check of X1 says
    longest = _longest_request(config)
    never = longest is not None and longest <= block
    if not never and not counts_no_hits(config):
        return
    finer = is_at_least(config, _UNIT_SINCE) and is_older_than(config, _UNIT_READ)
    to = _longer(config, block) if never else {}
    held = f"no request of {longest:,} tokens ({_LEN}) fills one" if never else "the log counts no hit"
    yield Finding(
        rule="X1",
        klass="gated" if to else "note",
        severity="warning" if never else "info",
        why=(
            f"prefix caching has no effect: a block of this hybrid model's cache has {block:,} tokens, only "
            f"full blocks are shared, and {held}"
        ),
        to=to,
        expects=(
            f"prompts that share more than {block:,} tokens hit; with {_LEN} 16384 instead of 4096 43 % of "
            "the prompts' tokens did"
            + (
                f"; a smaller --{_UNIT.replace('_', '-')}, a divisor of the block, needs less"
                if finer
                else ""
            )
        ),
        risks="shorter shared beginnings stay without a hit"
        + ("; longer requests take more cache" if to else ""),
        evidence={"block": block} | ({} if longest is None else {_LEN: longest}),
    )


def _check_reckoned_block(config: ServeConfig) -> Iterable[Finding]:
    """A remark before the log tells the size of a block."""
    if config.setting.get(_CACHING) is not True or _UNIT in config.setting:
        return
    block = None if find_block(config) is not None else reckon_block(config)
    if block is None or block <= _USUAL:
        return
    finer = is_at_least(config, _UNIT_SINCE) and is_older_than(config, _UNIT_READ)
    unit = f"; a smaller --{_UNIT.replace('_', '-')}, a divisor of the block, needs less" if finer else ""
    fall = _describe_fall(config)
    if fall:
        unit += (
            "; a conversation hits if its client repeats it unchanged: no time in the system prompt, no "
            "tool's answer shortened or left out later"
        )
    yield Finding(
        rule="X1",
        why=(
            f"{fall}prefix caching of this hybrid model shares full blocks only, and by its states one has "
            f"about {block:,} tokens: prompts with a shorter common beginning never hit"
        ),
        expects=f"hits from {block:,} common tokens on; the log says the exact size ('Setting attention "
        f"block size'){unit}",
        risks="shorter shared beginnings are computed again",
        evidence={"block": block},
    )


def _describe_fall(config: ServeConfig) -> str:
    """That the log's hit rate went down to nothing; "" if it did not."""
    rates = [count.hits for count in read_counts(config.log) if count.hits is not None]
    if len(rates) < _LEAST_COUNTS or rates[-1] > _NONE or max(rates) <= _NONE:
        return ""
    return (
        f"the log's hit rate fell from {max(rates):g} to {rates[-1]:g} %, so that prompts are computed anew: "
    )


def reckon_block(config: ServeConfig) -> int | None:
    """The tokens of a block: vLLM lengthens those of attention to the size of a recurrent state."""
    model, shape = config.model, layout(config)
    each = kv_bytes_per_token(config, shape)
    if model is None or not model.hybrid or not model.state_bytes or not model.attention_layers or not each:
        return None
    token = each / ceil(model.attention_layers / shape.pp)  # of one layer
    return _STEP * ceil(model.state_bytes / shape.tp / token / _STEP)


def find_block(config: ServeConfig) -> int | None:
    """The tokens of a block of the cache, by the log; None if it does not say that it is unusually long."""
    told = find_last(_BLOCK, config.log)
    return int(told["tokens"]) if told and int(told["tokens"]) > _USUAL else None


def _longest_request(config: ServeConfig) -> int | None:
    """By the flag, else by the log."""
    given = config.setting.get(_LEN)
    if isinstance(given, int):
        return given
    told = find_last(_LENGTH, config.log)
    return int(told["tokens"].replace(",", "")) if told else None


def counts_no_hits(config: ServeConfig) -> bool:
    """Whether several counts of the log have prompts, and none a hit."""
    counts = [match for line in config.log if (match := _HITS.search(line[:LONGEST_LINE]))]
    busy = [count for count in counts if float(count["prompts"])]
    return len(busy) >= _LEAST_COUNTS and all(not float(count["rate"]) for count in busy)


def _longer(config: ServeConfig, block: int) -> dict[Knob, Value]:
    """The next power of two, where the model reads it and the cache holds several such requests."""
    wanted = 1 << block.bit_length()
    tokens = config.start.kv_tokens if config.start else None
    most = config.model.max_len if config.model else None
    fits = tokens is not None and tokens >= _AT_ONCE * wanted and most is not None and most >= wanted
    return {_LEN: wanted} if fits else {}


def _check_old_default(config: ServeConfig) -> Iterable[Finding]:
    """A remark: the V0 engine of these releases shares prefixes only where it is asked to."""
    hybrid = config.model is not None and config.model.hybrid
    if config.setting.get(_CACHING) is not None or hybrid or is_pooling(config):
        return
    if not is_v0_by_default(config):
        return
    yield Finding(
        rule="X1",
        why=f"prefix caching is off by default in vLLM {config.version}: a beginning that prompts share, "
        "such as a template or a conversation, is computed for each request",
        expects="if prompts begin alike, --enable-prefix-caching shortens TTFT",
        risks="none known where prompts differ, but for a little CPU time",
        evidence={"version": config.version},
    )


LINTS = (
    DeploymentCheck(
        rules=("X1",),
        find=_check_old_default,
        reports="releases whose prefix caching is off by default (before 0.8), where no flag turns it on",
        source=f"{V1_ENGINE} (on by default in V1)",
        evidence_for=(
            f"several times the throughput with many hits, less than 1 % lost with none ({V1_ENGINE})"
        ),
        needs=Needs(facts=("version",)),
    ),
    DeploymentCheck(
        rules=("X1",),
        find=_check_block,
        reports="a block of a hybrid model's cache that no shared prompt fills",
        source=(
            "vllm-project/vllm#48401; vllm-project/vllm#53749; vllm-project/vllm#40696; "
            "vllm/platforms/interface.py: 'Setting attention block size to'"
        ),
        evidence_for=(
            "no hit in 10,608 tokens with a block of 8,320 and max_model_len 4096, 43 % with 16384 "
            "(vllm-project/vllm#48401)"
        ),
        needs=LOG,
    ),
    DeploymentCheck(
        rules=("X1",),
        find=_check_reckoned_block,
        reports="prefix caching of a hybrid model, whose blocks are long, where it is asked for",
        source="vllm-project/vllm#51198; vllm/platforms/interface.py: 'Setting attention block size to'",
        evidence_for="no hit of 561 common tokens (vllm-project/vllm#51198); 784 are a block of Qwen3.6-27B "
        "(vllm-project/vllm#47430)",
        needs=Needs(facts=("model",), applies=has_any(_CACHING)),
    ),
)
