"""The releases that are upgraded to: what each does otherwise, and how its upgrade should end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flettner.simulator.faults import Faults, faults_for
from flettner.simulator.release import RELEASE, read_release

Outcome = Literal["promoted", "rolled_back"]
VERSION = "0.33.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """`words`: of FLETTNER_SIM_RELEASE. `causes`: one of these is in the reason of the rollback."""

    name: str
    words: str = ""
    right: Outcome = "rolled_back"
    causes: tuple[str, ...] = ()
    answers_badly: bool = False  # clients see failures that are its own: errors, or a hang
    virtual: bool = False  # shows by its requests alone, after minutes

    @property
    def text(self) -> str:
        return f"version={VERSION} {self.words}".strip()

    @property
    def faults(self) -> Faults:
        return faults_for(read_release({RELEASE: self.text}).faults, {})

    def is_right(self, outcome: str, why: str) -> bool:
        return outcome == self.right and (outcome == "promoted" or any(cause in why for cause in self.causes))


GOOD = (
    Release(name="no regression", right="promoted", virtual=True),
    Release(name="ITL 5 % faster", words="slow_decode=0.95", right="promoted", virtual=True),
)
BAD = (
    Release(name="start hangs", words="never_ready", causes=("was not healthy within",)),
    Release(
        name="renamed flag",
        words="without_flag=max_num_seqs",
        causes=("unrecognized arguments: --max-num-seqs",),
    ),
    Release(
        name="removed metric",
        words="without_metric=vllm:num_preemptions",
        causes=("does not export what blue does",),
    ),
    Release(
        name="removed load metric",
        words="without_metric=vllm:num_requests_running",
        causes=("metrics page cannot be used",),
    ),
    Release(name="adapter not loaded", words="adapter_refused", causes=("does not load the adapter",)),
    Release(name="adapter answers 404", words="adapter_gone", causes=("refused", "sql"), answers_badly=True),
    Release(name="wrong answers", words="wrong=0.3", causes=("golden prompts",)),
    Release(
        name="KV blocks leak",
        words="leak=2",
        causes=("first token", "longer than", "tokens take", "a token"),
        answers_badly=True,
        virtual=True,
    ),
    Release(name="ITL 10 % slower", words="slow_decode=1.1", causes=("tokens take",), virtual=True),
    Release(
        name="2 % errors",
        words="errors=0.02",
        causes=("requests failed",),
        answers_badly=True,
        virtual=True,
    ),
)
"""The quickest first: what takes thousands of requests is judged by what the daemon has learned meanwhile."""


def choose(names: Sequence[str]) -> tuple[Release, ...]:
    """Raises ValueError."""
    every = {release.name: release for release in (*BAD, *GOOD)}
    if unknown := [name for name in names if name not in every]:
        raise ValueError(f"no release {unknown[0]!r} (there are: {', '.join(every)})")
    return tuple(every[name] for name in names) or tuple(every.values())
