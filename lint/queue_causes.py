"""Why requests wait although the KV cache has room and fewer run than may: text of F8. Pure."""

from collections.abc import Sequence

from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.log_counts import LEAST, Count, read_counts
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import is_v0_by_default, layout
from flettner.vllm_facts.sizing.gpus import find_speed
from flettner.vllm_facts.sizing.parallel_layouts import is_pcie_only

ROOM = 60.0  # percent of the KV cache, as Q1's default: up to there it is not what requests wait for
MANY_PROMPTS = 10.0  # tokens of prompts for one of an answer
BUSY = 0.1  # of the peak: kernels reach 0.3 to 0.6 of it, and less where GPUs exchange over PCIe
MANY = 256  # requests: beyond, a batch grows in time as much as in size on most GPUs
SLOW = 8.0  # tokens/s of each of them: about as fast as people read
_RUNTIME_LORA = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"


def explain_queue(config: ServeConfig) -> str:
    """The cause that the flags and the counts of the log show together; "" if they show none."""
    waits = [count for count in read_counts(config.log) if _waits_with_room(count)]
    if len(waits) < LEAST:
        return ""
    return _wait_for_adapters(config) or _wait_for_prompts(config, waits)


def has_slow_many(count: Count) -> bool:
    """Whether so many run, and each so slowly, that more of them help nobody who waits for an answer."""
    return count.running >= MANY and count.answers < SLOW * count.running


def advise_higher_cap(count: Count, cap: str) -> str:
    """Where the requests wait for the cap, which is given in words."""
    if has_slow_many(count):
        return (
            f"{cap} is the limit they wait for, but the {count.running} that run get "
            f"{count.answers / count.running:.1f} tokens/s each: more at once would make each slower, and "
            "hardly add to the sum. Faster steps come first (the other findings), or more engines"
        )
    full = count.usage or 0.0
    room = f"; the KV cache holds about {count.running * 80 / full:.0f} such requests" if full >= 1 else ""
    return f"{cap} is the limit they wait for{room}: `flettner advise` shows how far it may be raised"


def _waits_with_room(count: Count) -> bool:
    return count.waiting > 0 and count.works and count.usage is not None and count.usage < ROOM


def _wait_for_adapters(config: ServeConfig) -> str:
    """The scheduler leaves a request in the queue whose adapter has no slot: V0 and V1 alike."""
    if config.setting.get("enable_lora") is not True:
        return ""
    slots = positive_int(config.setting, "max_loras") or 1
    given = config.setting.get("max_loras") is not None
    named = len(str(config.setting.get("lora_modules") or "").split())
    if 0 < named <= slots and _RUNTIME_LORA not in config.env:
        return ""
    more = "as many as are asked for at once" if not named else str(named)
    return (
        f"--max-loras {slots}{'' if given else ' (the default)'}: a request for another adapter waits until "
        f"those of the {'one' if slots == 1 else slots} in its slots have ended, whatever memory is free. "
        f"With --max-loras {more} they run together; it takes memory for each"
    )


def _wait_for_prompts(config: ServeConfig, waits: Sequence[Count]) -> str:
    """Prompts fill the steps, so the next ones wait for their turn."""
    prompts = sum(each.prompts for each in waits) / len(waits)
    answers = sum(each.answers for each in waits) / len(waits)
    if prompts < MANY_PROMPTS * answers or _compute_share(config, prompts) < BUSY:
        return ""
    given = config.setting.get("enable_prefix_caching")
    off = not given and (given is False or is_v0_by_default(config))
    ways = ["--enable-prefix-caching, if prompts begin alike (it is off)"] if off else []
    if layout(config).tp > 1 and is_pcie_only(config):
        ways.append("fewer GPUs for an engine, and more engines: over PCIe prompts suffer most")
    ways.append("more GPUs, or shorter prompts")
    return (
        f"the steps are full of prompts ({prompts:,.0f} tokens/s of them, {answers:,.0f} of answers): "
        f"requests wait for the computation of those before them, "
        f"not for memory, and no more sequences would help; {'; '.join(ways)}"
    )


def _compute_share(config: ServeConfig, prompts: float) -> float:
    """Of the GPUs' peak throughput, what so many tokens/s of prompts take; 0 if it is not known."""
    model, speed = config.model, find_speed(config.card) if config.card else None
    size = (model.active_parameters or model.parameters) if model else None
    if not size or speed is None:
        return 0.0
    return 2.0 * size * prompts / (speed.tflops * 1e12 * layout(config).gpus)
