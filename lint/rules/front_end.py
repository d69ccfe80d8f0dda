"""The process in front of the engine, where the log shows that it may be the limit: rule C1."""

from collections.abc import Iterable

from flettner.lint.queue_causes import MANY_PROMPTS
from flettner.lint.recogniser import LOG
from flettner.lint.rules.switches import SERVERS, SERVERS_SINCE
from flettner.vllm_facts.log_counts import LEAST, Count, read_counts
from flettner.vllm_facts.releases.history import has_flag
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    effective_seqs,
    is_older_than,
    json_entries,
    layout,
    text_of,
)

_INTERVAL = "stream_interval"
_MANY_TOKENS, _MANY_CLIENTS = 10_000.0, 256  # a second, and at once: reported with 1,024 requests
_PIECE = 10  # tokens of a message
_BUSY = 2_000.0  # tokens/s of prompts, most of them of images
_SOME = 500.0
_COUNTED_SINCE = (0, 11)  # the share of images in the cache, in a count
_LIMITS = "limit_mm_per_prompt"
_MORE_SERVERS = (
    f"--{SERVERS.replace('_', '-')} 2 to 4, as the CPUs allow, or smaller images; more threads "
    "(--renderer-num-workers) gave 20 % more at 2, and 70 % less at 6"
)


def _is_single(config: ServeConfig) -> bool:
    """Whether one API server, as far as the flags tell, is in front of one engine."""
    given = config.setting.get(SERVERS)
    return given in (None, 1) and layout(config).dp == 1 and not is_older_than(config, SERVERS_SINCE)


def _check_streams(config: ServeConfig) -> Iterable[Finding]:
    """A message to a client for each token costs the CPU more than a GPU of today takes to compute it."""
    many = [
        count
        for count in read_counts(config.log)
        if count.answers >= _MANY_TOKENS and count.running >= _MANY_CLIENTS
    ]
    if len(many) < LEAST or config.setting.get(_INTERVAL) is not None or not _is_single(config):
        return
    if has_flag(_INTERVAL, config.version) is not True:
        return
    last = many[-1]
    yield Finding(
        rule="C1",
        why=(
            f"by the log one process sends {last.answers:,.0f} tokens a second to {last.running:,} clients, "
            "each in a message of its own where they stream: the GPU may wait for it"
        ),
        expects=(
            f"if clients stream and one core is busy, --stream-interval {_PIECE} (57 % more throughput is "
            f"reported with 1,024 requests at once, not promised), or --{SERVERS.replace('_', '-')} 4"
        ),
        risks=f"the text arrives in pieces of {_PIECE} tokens",
        evidence={"tokens_per_s": last.answers, "running": last.running},
    )


def _check_media(config: ServeConfig) -> Iterable[Finding]:
    """Images are read and resized by one thread of the API server, before the engine counts a request."""
    counts, most = read_counts(config.log), effective_seqs(config)
    busy = [count for count in counts if count.media and count.prompts >= _BUSY]
    seen = len(busy) >= LEAST and _is_single(config)
    asked = not seen and _asks_for_media(config) and any(map(_is_mostly_prompts, counts))
    if not (seen or asked) or most is None or not _is_starved(counts, most):
        return
    running = max(count.running for count in counts)
    yield Finding(
        rule="C1",
        why=(
            f"by the log no request with images waits, and at most {running} of {most} (max_num_seqs) run: "
            "if clients wait all the same, it is for the API server, which prepares one image after another"
        ),
        expects=_MORE_SERVERS
        if seen
        else "smaller images and fewer frames (--mm-processor-kwargs), media that the clients have resized, "
        "or several such servers behind a proxy: see whether one core is busy all the time",
        risks="each process takes a core, 1 to 2 GiB of the host's memory, and keeps images of its own",
        evidence={"running": running, "max_num_seqs": most},
    )


def _asks_for_media(config: ServeConfig) -> bool:
    """Whether the flags expect images or videos, in a release whose log does not count them."""
    limits = {**json_entries(config, _LIMITS), **_read_pairs(text_of(config, _LIMITS))}
    named = any(str(limits.get(kind) or "0") != "0" for kind in ("image", "video"))
    single = config.setting.get(SERVERS) in (None, 1) and layout(config).dp == 1
    return named and single and is_older_than(config, _COUNTED_SINCE)


def _read_pairs(text: str) -> dict[str, str]:
    """As older releases write it: image=2,video=1"""
    return dict(pair.split("=", 1) for pair in text.split(",") if "=" in pair)


def _is_mostly_prompts(count: Count) -> bool:
    return count.prompts >= _SOME and count.prompts > MANY_PROMPTS * count.answers


def _is_starved(counts: Iterable[Count], most: int) -> bool:
    return all(not count.waiting and 2 * count.running <= most for count in counts)


LINTS = (
    DeploymentCheck(
        rules=("C1",),
        find=_check_streams,
        reports="very many tokens a second through one API server, by the counts of the log",
        source="vllm/config/scheduler.py: stream_interval; vllm-project/vllm#27869",
        evidence_for=(
            "57 % more throughput with --stream-interval 10 (gpt-oss-20b, 1,024 requests at once, B200, "
            "vllm-project/vllm-project.github.io#159)"
        ),
        needs=LOG,
    ),
    DeploymentCheck(
        rules=("C1",),
        find=_check_media,
        reports="requests with images of which few run and none waits, by the counts of the log",
        source="vllm/renderers/base.py: _mm_executor; vllm-project/vllm#58266; vllm-project/vllm#21873",
        evidence_for=(
            "14 images a second through one process in front of a B300 (vllm-project/vllm#58266), and "
            "requests that wait 30 s in front of it (vllm-project/vllm#44787)"
        ),
        needs=LOG,
    ),
)
