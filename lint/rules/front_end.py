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
    is_pooling,
    json_entries,
    layout,
    text_of,
)

_INTERVAL = "stream_interval"
_MANY_TOKENS, _MANY_CLIENTS = 10_000.0, 256  # a second, and at once: reported with 1,024 requests
_PIECE = 10  # tokens of a message
_BUSY = 2_000.0  # tokens/s of prompts, most of them of images
_SOME = 500.0
_IDLE_COUNTS, _SOME_PROMPTS = 3, 100.0  # tokens/s: below, hardly anybody asks
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


def _check_idle(config: ServeConfig) -> Iterable[Finding]:
    """Work in each count, and nobody in the engine whenever it counts: it waits for requests."""
    busy = [count for count in read_counts(config.log) if count.works]
    if len(busy) < _IDLE_COUNTS or any(count.running or count.waiting for count in busy):
        return
    prompts = sum(count.prompts for count in busy) / len(busy)
    if prompts < _SOME_PROMPTS or is_pooling(config) or any(_check_media(config)):
        return
    media = any(count.media for count in busy) or _names_media(config)
    images = (
        f", or images that the API server prepares on the CPU one after another ({_MORE_SERVERS})" * media
    )
    yield Finding(
        rule="C1",
        why=(
            f"in all {len(busy)} counts of the log with work no request runs or waits, though {prompts:,.0f} "
            "tokens/s of prompts went through: the engine is idle most of the time, and is not what is slow"
        ),
        expects="no flag of the engine makes it faster: look at what is before it, such as a client that "
        f"sends one request and waits for its answer (send 8 or more at once){images}",
        risks="none",
        evidence={"counts": len(busy), "running": 0},
    )


def _names_media(config: ServeConfig) -> bool:
    limits = {**json_entries(config, _LIMITS), **_read_pairs(text_of(config, _LIMITS))}
    return any(str(limits.get(kind) or "0") != "0" for kind in ("image", "video"))


def _asks_for_media(config: ServeConfig) -> bool:
    """Whether the flags expect images or videos, in a release whose log does not count them."""
    single = config.setting.get(SERVERS) in (None, 1) and layout(config).dp == 1
    return _names_media(config) and single and is_older_than(config, _COUNTED_SINCE)


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
    DeploymentCheck(
        rules=("C1",),
        find=_check_idle,
        reports="work between the counts of the log, and no request in the engine at any of them",
        source="vllm/v1/metrics/loggers.py: LoggingStatLogger; vllm-project/vllm#26349",
        needs=LOG,
    ),
)
