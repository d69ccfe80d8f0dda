"""A server of which the log shows the pace of one request only, or of a few slow ones: rules C2 and F11."""

from collections.abc import Iterable

from flettner.lint.recogniser import LOG
from flettner.lint.rules.log_pace import (
    FEW_AT_ONCE,
    HOST_PACE,
    NEAR,
    explains_pace,
    find_pace,
    mostly_answers,
    reckon_pace,
)
from flettner.vllm_facts.drafts import find_flags
from flettner.vllm_facts.log_counts import Count, read_counts
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck, Layout, is_pooling, is_sparse, layout

P2P = "NCCL_P2P_DISABLE"
FAST, SPLIT_FAST = 100.0, 200.0  # tokens/s: nobody reads faster; of several GPUs more is expected
LITTLE = 0.15  # of the memory's pace
FAR_FEW, SHORT = 0.1, 20.0  # of the usual pace of one; percent of the KV cache, which is hardly read
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
            f"parameters){_name_drafts(config)}{_name_waits(config)}"
        ),
        risks="another model or quantisation answers differently",
        evidence={"most_at_once": 1, "tokens_per_s": best},
    )


def _check_few(config: ServeConfig) -> Iterable[Finding]:
    """A remark: a few requests with short contexts, each many times slower than one alone should be."""
    counts = [each for each in read_counts(config.log) if each.answers > 0 and not each.waiting]
    paces = [each.answers / each.running for each in counts if _is_short(each)]
    if not paces or is_pooling(config) or is_sparse(config) or not mostly_answers(config):
        return
    pace = reckon_pace(config, max(paces))
    if pace is None or find_flags(config.setting) or config.setting.get("cpu_offload_gb"):
        return
    usual, shape = min(NEAR * pace.most, HOST_PACE), layout(config)
    if pace.best >= FAR_FEW * usual or any(each.running == 1 for each in counts):
        return
    links = (
        f"the links between the {shape.gpus} GPUs (PCIe without direct access, NCCL over the host; compare "
        "one GPU, or fewer), "
        if shape.gpus > 1
        else ""
    )
    yield Finding(
        rule="F11",
        why=(
            f"a few requests get at most {pace.best:.1f} tokens/s each, and {usual:.0f} are usual for one: "
            f"the memory of a GPU ({pace.bandwidth:g} GB/s) reads {pace.read / 1e9:.1f} GB for each step, "
            "which all of them share"
        ),
        expects=f"the reads are not what takes the time: look at {links}kernels that this GPU lacks for the "
        "format of the weights (the start's log names those it falls back to), eager mode, and the CPU that "
        "launches the steps",
        evidence={"tokens_per_s": round(pace.best, 1), "usual": round(usual)},
    )


def _is_short(count: Count) -> bool:
    return 1 < count.running <= FEW_AT_ONCE and count.usage is not None and count.usage <= SHORT


def _compare_memory(config: ServeConfig) -> str:
    pace, card = find_pace(config), config.card.name if config.card else ""
    if pace is None or pace.share >= 1:
        return ""
    if pace.share < LITTLE:
        return "; the reads of the weights take little of the time: launches of kernels and exchanges do"
    return f", {pace.describe(card)}"


def _name_drafts(config: ServeConfig) -> str:
    return "" if find_flags(config.setting) else " or drafts that are often right (--speculative-config)"


def _name_waits(config: ServeConfig) -> str:
    shape = layout(config)
    exchanges = (
        f"; with TP {shape.tp} each layer waits for two exchanges between the GPUs: compare fewer GPUs where "
        "the weights fit"
        if shape.tp > 1
        else ""
    )
    return exchanges + _name_detour(config, shape) + (_IN_TURN if shape.pp > 1 else "")


def _name_detour(config: ServeConfig, shape: Layout) -> str:
    if shape.tp == 1 or config.env.get(P2P) in {None, "0"}:
        return ""
    return (
        f", and {P2P}={config.env[P2P]} sends them through the host's memory: compare without it where the "
        "GPUs reach each other directly (`nvidia-smi topo -p2p r` says OK)"
    )


LINTS = (
    DeploymentCheck(
        rules=("C2",),
        find=_check_alone,
        reports="a log that shows the pace of one request, which is not the throughput of the server",
        source="vllm/v1/metrics/loggers.py: LoggingStatLogger; CSCfi/ai-inference-examples#3",
        needs=LOG,
    ),
    DeploymentCheck(
        rules=("F11",),
        find=_check_few,
        reports="a few requests that are each many times slower than the GPU's memory lets them be",
        source="vllm/v1/metrics/loggers.py: LoggingStatLogger; nlzy/vllm-gfx906#16",
        evidence_for="2.8 tokens/s for each of 10 requests (8B over 2 MI50, nlzy/vllm-gfx906#16)",
        needs=LOG,
    ),
)
