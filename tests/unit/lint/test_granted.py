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


@pytest.mark.parametrize(
    ("flags", "env", "cpus", "reported"),
    [
        ("--structured-outputs-config.backend xgrammar", "", 8.0, ("warning", {"OMP_NUM_THREADS": "4"})),
        ("--structured-outputs-config.backend xgrammar", "", 3.0, ("warning", {"OMP_NUM_THREADS": "1"})),
        ("--structured-outputs-config.backend xgrammar", "OMP_NUM_THREADS=2", 8.0, None),
        ("--structured-outputs-config.backend xgrammar -tp 2", "", 8.0, None),  # vLLM sets one thread itself
        ("--structured-outputs-config.backend xgrammar", "", None, None),
        ("--tool-call-parser hermes --enable-auto-tool-choice", "", 8.0, ("info", {})),
        ("", "", 8.0, None),
    ],
)
def test_a_quota_of_cpus_bounds_the_threads_that_build_answers_by_a_schema(
    flags: str, env: str, cpus: float | None, reported: tuple[str, dict[str, str]] | None
) -> None:
    config = case(f"vllm serve m {flags}", env=env, granted=Granted(cpus=cpus, cpus_kept=cpus))

    found = findings(LINTS, config)

    assert [(finding.severity, finding.env) for finding in found] == ([reported] if reported else [])


ENDED = ("INFO:     Shutting down",)


@pytest.mark.parametrize(
    ("granted", "log", "severity"),
    [
        (Granted(answer_s=1, deaf_s=20, restarts=True), (), "info"),
        (Granted(answer_s=1, deaf_s=20, restarts=True), ENDED, "warning"),
        (Granted(answer_s=1, deaf_s=20), ENDED, "info"),  # a readiness probe ends nothing
        (Granted(answer_s=6, deaf_s=20, restarts=True), (), None),
        (Granted(answer_s=1, deaf_s=90, restarts=True), (), None),
        (Granted(), (), None),
    ],
)
def test_a_probe_gives_a_busy_server_time(
    granted: Granted, log: tuple[str, ...], severity: str | None
) -> None:
    reported = findings(LINTS, case("vllm serve m", granted=granted, log=log))

    assert [(finding.rule, finding.severity) for finding in reported] == (
        [("U4", severity)] if severity else []
    )
