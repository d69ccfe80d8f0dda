"""Speculative decoding that the log shows to be wasted: rule SD1."""

import re

from flettner.lint.recogniser import recogniser
from flettner.vllm_facts.references import DOCS
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import speculation_method
from flettner.vllm_facts.values import Knob, Value

_REJECTED = 5.0  # percent: below it not even a cheap draft pays, and most often the draft is a wrong one
_ENOUGH = 200  # drafted tokens of one line
_FLAGS = ("speculative_config", "spec_method", "spec_model", "spec_tokens")


def _rejected_drafts(match: re.Match[str], config: ServeConfig) -> Finding | None:
    accepted = float(match["accepted"])
    if accepted >= _REJECTED or int(match["drafted"]) < _ENOUGH:
        return None
    given = [knob for knob in config.setting if knob.partition(".")[0] in _FLAGS]
    if not given:
        return None  # switched off since: the log is of another start
    method = speculation_method(config)
    cause = (
        "the texts repeat nothing of their prompts"
        if method in {"ngram", "suffix"}
        else "the draft model does not match: another base model, vocabulary, quantization or revision"
    )
    to: dict[Knob, Value] = dict.fromkeys(given)
    return Finding(
        rule="SD1",
        klass="gated",
        severity="warning",
        why=(
            f"according to the log {accepted:g} % of the drafted tokens are accepted: nearly all are "
            "computed in vain"
        ),
        to=to,
        expects=f"more throughput without speculation; or find out why, most likely {cause}",
        risks="answers may differ in the last digits of a logit",
        evidence={"line": match[0][:160], "accepted_percent": accepted},
    )


LINTS = (
    recogniser(
        "SD1",
        r"SpecDecoding metrics: .{0,300}?Drafted: (?P<drafted>\d{1,12}) tokens"
        r".{0,300}?acceptance rate: (?P<accepted>\d{1,3}(?:\.\d{1,6})?)%",
        _rejected_drafts,
        reports="drafts of which nearly none is accepted",
        source=f"vllm/v1/spec_decode/metrics.py: 'SpecDecoding metrics'; {DOCS}/features/spec_decode/",
    ),
)
