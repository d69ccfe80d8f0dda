"""The parts of a start, as vLLM logs them."""

import pytest

from flettner.actuators.docker.log_head import until_started
from flettner.actuators.vllm.start_log import describe_start

LOADED = b"(Worker_TP%d) INFO 11-23 [model_runner.py:425] Model loading took 14.99 GiB memory and %s seconds"
READY = b"INFO [core.py:395] init engine (profile, create kv cache, warmup model) took 52.10 s"
OLDER = b"INFO [core.py:193] init engine (profile, create kv cache, warmup model) took 52.10 seconds"


@pytest.mark.parametrize(
    ("lines", "note"),
    [
        (
            (LOADED % (0, b"40.9"), LOADED % (1, b"41.2"), READY + b" (compilation: 35.00 s)"),
            ["of the last start 41 s loaded the model, 35 s compiled, 17 s for the KV cache and graphs"],
        ),
        (
            (LOADED % (0, b"8.0"), OLDER),
            ["of the last start 8 s loaded the model, 0 s compiled, 52 s for the KV cache and graphs"],
        ),
        (
            (LOADED.replace(b" memory", b"") % (0, b"2.0"), READY),  # 0.25
            ["of the last start 2 s loaded the model, 0 s compiled, 52 s for the KV cache and graphs"],
        ),
        ((LOADED % (0, b"8.0"),), []),
        ((READY,), []),
        ((), []),
    ],
    ids=["compiles", "an older release", "without the word memory", "not ready", "no load", "nothing"],
)
def test_a_start_is_divided_by_what_took_its_time(lines: tuple[bytes, ...], note: list[str]) -> None:
    assert describe_start(lines) == note


def test_nothing_after_the_start_is_read() -> None:
    lines = iter([b"a", b"INFO:     Application startup complete.", b"b"])

    assert list(until_started(lines)) == [b"a", b"INFO:     Application startup complete."]
    assert next(lines) == b"b"
