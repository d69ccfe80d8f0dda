"""What some releases of vLLM are known to do worse, as rows: the releases, where it shows, what helps."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """One that was reported. `first` and `last` bound the releases that reports name, both included.

    `model` and `card` are patterns, searched in lower-case names; empty: any.
    """

    issue: str
    first: tuple[int, int]
    last: tuple[int, int]
    symptom: str
    remedy: str
    model: str = ""
    card: str = ""
    fixed: str = ""  # in which release; empty: no fix is on record

    def seen_in(self, release: tuple[int, int]) -> bool:
        return self.first <= release <= self.last

    def fits(self, model: str, card: str) -> bool:
        """Whether it concerns this model and GPU; a name that is not known ("") fits no pattern."""
        said = ((self.model, model), (self.card, card))
        return all(not pattern or re.search(pattern, name.lower()) for pattern, name in said)


REGRESSIONS = (
    Regression(
        issue="vllm-project/vllm#35048",
        first=(0, 15),
        last=(0, 19),
        model=r"minimax-m2",
        symptom="lower throughput than 0.14.0 under high load with large requests (4 and 8 H100/H200)",
        remedy="compare with 0.14.0 or with a current release on your own load before staying",
    ),
    Regression(
        issue="vllm-project/vllm#31475",
        first=(0, 13),
        last=(0, 19),
        model=r"(glm-4\.7|minimax-m2).*",
        card=r"mi300x",
        symptom="FP8 decodes slower than BF16 in steady state",
        remedy="serve the BF16 checkpoint where it fits, or measure a current release",
    ),
    Regression(
        issue="vllm-project/vllm#43444",
        first=(0, 20),
        last=(0, 21),
        model=r"bge-reranker",
        symptom="reranking under concurrent requests is slower than with 0.19.1",
        remedy="upgrade past 0.21, or stay on 0.19.1",
        fixed="after 0.21",
    ),
    Regression(
        issue="verl-project/verl#5964",
        first=(0, 18),
        last=(0, 18),
        card=r"gb200",
        symptom="about 10 % less throughput than 0.17 (aarch64)",
        remedy="stay on 0.17 or measure a current release",
    ),
)
