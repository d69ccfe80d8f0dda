"""CPU cost of aggregation: 200 servers, each with one scrape, one reading and ten requests per second.

python -m bench.fold_cost [SERVERS] prints the share of one core and writes bench/results/fold_cost.json.
"""

import json
import resource
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import perf_counter, process_time

from bench.results import new_parser, write
from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.reading import Buckets, EngineSample, Request, RequestSample
from flettner.agent.observe.aggregator import Aggregator

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SECONDS, REQUESTS_PER_S = 60, 10
BUCKETS = Buckets(edges=tuple(0.01 * 1.5**i for i in range(20)), counts=(3.0,) * 21, sum=9.0)
SCRAPE = EngineSample(
    at=NOON,
    server="r0",
    interval_s=1.0,
    running=40.0,
    waiting=3.0,
    kv_usage=0.5,
    prompt_tokens=900.0,
    generation_tokens=700.0,
    prefix_queries=900.0,
    prefix_hits=300.0,
    ttft=BUCKETS,
    itl=BUCKETS,
    e2e=BUCKETS,
)
REQUEST = Request(server="r0", outcome="ok", status=200, duration_s=1.5, ttft_s=0.1, tokens=70)
SLO = Slo(
    ttft=Objective(under_s=0.5, share=0.95),
    itl=Objective(under_s=0.05, share=0.95),
    e2e=Objective(under_s=5.0, share=0.95),
)


def cost(servers: int, *, proxied: bool) -> float:
    """Return CPU milliseconds per second, measured with full windows."""
    folds = [Aggregator(slo=SLO) for _ in range(servers)]
    requests = tuple(replace(REQUEST, ttft_s=0.01 * number) for number in range(REQUESTS_PER_S))
    spent_s = 0.0
    for second in range(SECONDS):
        at = NOON + timedelta(seconds=second)
        scrape, served = replace(SCRAPE, at=at), RequestSample(at=at, requests=requests)
        begun_s = process_time()
        for fold in folds:
            fold.add(scrape)
            if proxied:
                fold.add(served)
            fold.take_request_counts(at)
            fold.reading("r0", at)
        if second >= SECONDS // 2:
            spent_s += process_time() - begun_s
    return 1000 * spent_s / (SECONDS - SECONDS // 2)


def main() -> None:
    parser = new_parser("bench.fold_cost", __doc__, "fold_cost.json")
    parser.add_argument("servers", nargs="?", type=int, default=200)
    options = parser.parse_args()
    servers: int = options.servers
    begun_s = perf_counter()
    proxied_ms, scraped_ms = cost(servers, proxied=True), cost(servers, proxied=False)
    result = {
        "servers": servers,
        "requests_per_server_per_s": REQUESTS_PER_S,
        "cpu_ms_per_s": {"with_requests": round(proxied_ms, 1), "histograms_only": round(scraped_ms, 1)},
        "share_of_a_core": {
            "with_requests": round(proxied_ms / 1000, 4),
            "histograms_only": round(scraped_ms / 1000, 4),
        },
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "wall_s": round(perf_counter() - begun_s, 1),
    }
    write(options.json, result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
