"""A server of which the log shows the pace of one request only: rule C2."""

from collections.abc import Iterable

from flettner.lint.recogniser import LOG
from flettner.lint.rules.log_pace import explains_pace, find_pace, mostly_answers
from flettner.vllm_facts.log_counts import read_counts
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck, Layout, is_pooling, layout

FAST, SPLIT_FAST = 100.0, 200.0  # tokens/s: nobody reads faster; of several GPUs more is expected
LITTLE = 0.15  # of the memory's pace
_IN_TURN = (
    "; in a pipeline it is in one stage at a time while the other GPUs wait, and between hosts each token "
    "waits for the network"
)


def _check_alone(config: ServeConfig) -> Iterable[Finding]:
    """A remark: what looks like a low throughput is how fast a single request is."""
    best = max((each.answers for each in read_counts(config.log) if each.running == 1), default=0.0)
    if config.start is None or config.start.most_at_once != 1 or is_pooling(config):
        return
    limit = SPLIT_FAST if layout(config).gpus > 1 else FAST
    if not 0 < best < limit or not mostly_answers(config) or explains_pace(config):
        return
    yield Finding(
        rule="C2",
        why=(
            f"at most one request runs in each count of the log: {best:g} tokens/s are the pace of one, not "
            f"what the server can do{_compare_memory(config)}"
        ),
        expects=(
            "8 to 32 requests at once go on at nearly that pace each, so the sum is many times as much. One "
            "alone gets faster by fewer bytes for each token (weights in fewer bits, fewer active "
            f"parameters) or drafts that are often right (--speculative-config){_name_waits(layout(config))}"
        ),
        risks="another model or quantisation answers differently",
        evidence={"most_at_once": 1, "tokens_per_s": best},
    )


def _compare_memory(config: ServeConfig) -> str:
    pace, card = find_pace(config), config.card.name if config.card else ""
    if pace is None or pace.share >= 1:
        return ""
    if pace.share < LITTLE:
        return "; the reads of the weights take little of the time: launches of kernels and exchanges do"
    return f", {pace.describe(card)}"


def _name_waits(shape: Layout) -> str:
    exchanges = (
        f"; with TP {shape.tp} each layer waits for two exchanges between the GPUs: compare fewer GPUs where "
        "the weights fit"
        if shape.tp > 1
        else ""
    )
    return exchanges + (_IN_TURN if shape.pp > 1 else "")


LINTS = (
    DeploymentCheck(
        rules=("C2",),
        find=_check_alone,
        reports="a log that shows the pace of one request, which is not the throughput of the server",
        source="vllm/v1/metrics/loggers.py: LoggingStatLogger; CSCfi/ai-inference-examples#3",
        needs=LOG,
    ),
)
