"""The release of a simulated server: what another image, or another environment, does otherwise.

The variable RELEASE lists it in words: `version=0.33.0 errors=0.02 without_flag=max_num_seqs`. It is set
where vLLM would be installed, by `ENV` of an image or by the `vllm` script of an environment, and not by the
command line that a server is configured with. A word is `version=NUMBER`, `without_flag=NAME` (renamed or
removed), `without_metric=NAME` (and every metric whose name begins so), or a kind of
flettner.simulator.faults, which every server of the release has.
"""

from collections.abc import Mapping
from dataclasses import dataclass

RELEASE = "FLETTNER_SIM_RELEASE"
VERSION = "0.32.0"  # of the vLLM that is simulated


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRelease:
    """`faults`: texts as of --sim-fault, which always apply."""

    version: str = VERSION
    faults: tuple[str, ...] = ()
    without_flags: frozenset[str] = frozenset()  # knobs: "max_num_seqs"
    without_metrics: tuple[str, ...] = ()  # "vllm:num_preemptions_total"


def read_release(env: Mapping[str, str]) -> SimulatedRelease:
    version, faults, flags, metrics = VERSION, [], [], []
    for word in env.get(RELEASE, "").split():
        name, _, value = word.partition("=")
        match name:
            case "version":
                version = value
            case "without_flag":
                flags.append(value)
            case "without_metric":
                metrics.append(value)
            case _:
                faults.append(f"*:{word}")
    return SimulatedRelease(
        version=version,
        faults=tuple(faults),
        without_flags=frozenset(flags),
        without_metrics=tuple(metrics),
    )
