"""A cap of one request, whatever the model is: rule B1."""

from collections.abc import Iterable

from flettner.lint.rules.memory import SEQS
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck, has_any, is_pooling, is_transformer
from flettner.vllm_facts.sizing.kv_cache import estimate_fit
from flettner.vllm_facts.sizing.parallel_layouts import apply_plan


def _check_single(config: ServeConfig) -> Iterable[Finding]:
    """Only where the size of the model, and with it the room for more, is not known: else memory.py tells."""
    known = is_transformer(config) and estimate_fit(apply_plan(config)) is not None
    if positive_int(config.setting, SEQS) != 1 or known or is_pooling(config) or config.concurrency == 1:
        return
    yield Finding(
        rule="B1",
        why=f"{SEQS} 1: a second request waits until the first has its last token, and so does the next turn "
        "of an agent that asks for a title or a summary meanwhile",
        expects=f"with {SEQS} 2 to 4 they run together, nearly as fast each, where the KV cache has room",
        risks="a little memory for the states and graphs of more requests",
        evidence={SEQS: 1},
    )


LINTS = (
    DeploymentCheck(
        rules=("B1",),
        find=_check_single,
        reports="one request at a time, where the size of the model is not known",
        source="vllm/v1/core/sched/scheduler.py: max_num_running_reqs",
        evidence_for="no public measurement for each model",
        needs=Needs(applies=has_any(SEQS)),
    ),
)
