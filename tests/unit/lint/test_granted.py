"""CPUs and time that a container needs, against those that its file grants."""

import pytest

from flettner.lint.rules.granted import LINTS
from flettner.vllm_facts.serve_config import Granted
from tests.support.lint_cases import LLAMA_8B, LLAMA_70B, case, findings


@pytest.mark.parametrize(
    ("flags", "granted", "severity"),
    [
        pytest.param("", Granted(cpus=2, cpus_kept=2), "warning", id="fewer than processes"),
        pytest.param("", Granted(cpus=3, cpus_kept=3), None, id="one for each process"),
        pytest.param("-tp 4", Granted(cpus=5), "warning", id="a worker for each GPU"),
        pytest.param("-tp 4", Granted(cpus=6), None, id="enough for four workers"),
        pytest.param("", Granted(cpus_kept=2), "info", id="others may take the rest"),
        pytest.param("", Granted(cpus=8, cpus_kept=1), "info", id="a limit above a small request"),
        pytest.param(
            "-dp 2 --api-server-count 1", Granted(cpus=4), "warning", id="an engine for each of two"
        ),
        pytest.param("", Granted(), None, id="nothing said of CPUs"),
    ],
)
def test_a_cpu_for_each_busy_process(flags: str, granted: Granted, severity: str | None) -> None:
    reported = findings(LINTS, case(f"vllm serve m {flags}", granted=granted))

    assert [(finding.rule, finding.severity) for finding in reported] == (
        [("C3", severity)] if severity else []
    )


@pytest.mark.parametrize(
    ("name", "granted", "severity"),
    [
        pytest.param("org/m", Granted(start_s=100), "warning", id="15 GiB from a hub"),
        pytest.param("org/m", Granted(start_s=150), None, id="time for 15 GiB from a hub"),
        pytest.param("/models/m", Granted(start_s=80), None, id="15 GiB from a disk"),
        pytest.param("/models/m", Granted(start_s=30), "warning", id="no time to compile"),
        pytest.param("org/m", Granted(start_s=100, startup_probe=True), "info", id="a short startup probe"),
        pytest.param("org/m", Granted(cpus=9), None, id="no probe"),
    ],
)
def test_a_probe_waits_for_the_weights(name: str, granted: Granted, severity: str | None) -> None:
    reported = findings(LINTS, case(f"vllm serve {name}", model=LLAMA_8B, granted=granted))

    assert [(finding.rule, finding.severity) for finding in reported] == (
        [("U4", severity)] if severity else []
    )


def test_larger_weights_want_a_longer_probe() -> None:
    granted = Granted(start_s=300)

    assert findings(LINTS, case("vllm serve org/m", model=LLAMA_70B, granted=granted))
    assert not findings(LINTS, case("vllm serve org/m", model=LLAMA_8B, granted=granted))
