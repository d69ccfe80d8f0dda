"""What the tests of `flettner advise` share: a queue behind a cap of 2, seen on a page of real vLLM."""

from collections.abc import Callable

Advise = Callable[..., tuple[int, str, str]]
Scrapes = Callable[[bytes, bytes], tuple[str, ...]]
QUEUE = {"num_requests_running": 2.0, "num_requests_waiting": 14.0, "kv_cache_usage_perc": 0.01}
FLAGS = "vllm serve tiny --max-num-seqs 2"
