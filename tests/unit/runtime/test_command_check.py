"""What the daemon finds in the flags of a running server."""

from dataclasses import replace

import pytest

from flettner.agent.domain.model import Server
from flettner.agent.domain.reading import Gpu
from flettner.agent.machine.transitions import describe_serve_config
from flettner.agent.runtime.command_check import CommandCheck, lint_command
from flettner.lint.fixes import find_fixes
from flettner.lint.rules import all_lints
from flettner.policies.conformance.readings import a_reading
from flettner.vllm_facts.flag_parser import parse_setting
from flettner.vllm_facts.metrics.names import CPU_CACHE
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import chooses_cpus
from flettner.vllm_facts.values import Setting
from tests.support.config_builder import QUICK, SERVER

T4 = a_reading(gpus=(Gpu(index=0, uuid="GPU-1", name="Tesla T4"),))
SLOW: Setting = {"model": "Qwen/Qwen2.5-1.5B-Instruct", "async_scheduling": False}


def server(setting: Setting) -> Server:
    return Server(name="chat-r0", address="127.0.0.1:8101", setting=setting)


def rules(setting: Setting) -> list[str]:
    return [finding.rule for finding in lint_command(describe_serve_config(server(setting), T4))]


def test_a_server_without_faults_has_no_findings() -> None:
    assert rules(parse_setting([*SERVER, *QUICK])) == []
    assert rules({"model": "tiny", "max_num_seqs": 4}) == []


def test_a_flag_that_costs_speed_is_found() -> None:
    assert "A1" in rules(SLOW)


def test_memory_that_others_may_hold_is_left_to_what_is_measured() -> None:
    setting: Setting = {"model": "Qwen/Qwen2.5-1.5B-Instruct", "gpu_memory_utilization": 0.6}

    assert "M5" in [
        finding.rule
        for finding in find_fixes(describe_serve_config(server(setting), T4), all_lints()).findings
    ]
    assert "M5" not in rules(setting)


def test_a_server_that_runs_refutes_an_error_of_its_start() -> None:
    """google/gemma-2 does not start in float16, by vLLM's own check."""
    assert rules({"model": "google/gemma-2-2b-it", "dtype": "half"}) == []


def test_the_deployment_has_the_version_and_the_gpu_that_were_measured() -> None:
    case = describe_serve_config(server(SLOW), T4)

    assert (case.version, case.card.name if case.card else "", case.gpus) == ("0.32.0", "T4", None)
    assert case.model is not None


@pytest.mark.parametrize("facts", [{"version": "0.32.0+cpu"}, {CPU_CACHE: "4294967296"}])
def test_a_server_on_cpus_has_no_graphs_and_none_of_the_hosts_gpus(facts: dict[str, str]) -> None:
    setting: Setting = {"model": "Qwen/Qwen2.5-1.5B-Instruct", "enforce_eager": True}
    config = describe_serve_config(server(setting), replace(T4, facts={**T4.facts, **facts}))

    assert config.card is None
    assert lint_command(config) == ()
    assert "G1" in rules(setting)
    on_gpu = describe_serve_config(server(setting), replace(T4, facts={**T4.facts, CPU_CACHE: "None"}))
    assert on_gpu.card is not None


def test_a_servers_environment_says_that_it_runs_on_cpus() -> None:
    on_cpus = replace(server(SLOW), on_cpus=chooses_cpus({"VLLM_CPU_KVCACHE_SPACE": "1"}))

    assert describe_serve_config(on_cpus, T4).on_cpus
    assert not describe_serve_config(on_cpus, T4, "L4").on_cpus
    assert not describe_serve_config(server(SLOW), T4).on_cpus
    assert not chooses_cpus({"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_USE_V1": "1"})
    assert chooses_cpus({"VLLM_CPU_OMP_THREADS_BIND": "0-23"})


def test_the_operator_says_which_card_no_sensor_sees() -> None:
    setting: Setting = {"model": "Qwen/Qwen2.5-1.5B-Instruct", "enforce_eager": True}
    unseen = a_reading(gpus=())

    named = describe_serve_config(server(setting), unseen, "L4")

    assert named.card is not None
    assert named.card.name == "L4"
    assert describe_serve_config(server(setting), unseen).card is None
    measured = describe_serve_config(server(setting), T4, "L4").card
    assert measured is not None
    assert measured.name == "T4"
    assert lint_command(describe_serve_config(server(setting), T4, "cpu")) == ()


async def test_flags_are_linted_again_only_when_the_deployment_changes() -> None:
    linted: list[ServeConfig] = []

    def lint(case: ServeConfig) -> tuple[Finding, ...]:
        linted.append(case)
        return (Finding(rule="A1", klass="auto", severity="warning", why="1", source="test"),)

    check = CommandCheck(lint)
    for reading in (None, T4, T4):
        await check.update(server(SLOW), reading)
    assert [bool(case.version) for case in linted] == [False, True]
    assert [finding.rule for finding in check.findings] == ["A1"]

    await check.update(None, None)
    assert check.findings == ()


async def test_a_defect_of_lint_leaves_no_findings() -> None:
    def broken(_: ServeConfig) -> tuple[Finding, ...]:
        raise KeyError("max_num_seqs")

    check = CommandCheck(broken)
    await check.update(server(SLOW), T4)

    assert check.findings == ()


async def test_the_configured_kind_of_traffic_is_asked_for() -> None:
    """An X1 about shared prefixes is a remark unless the traffic is known to share some."""
    split: Setting = {"model": "Qwen/Qwen2.5-1.5B-Instruct", "enable_prefix_caching": False}
    said = []
    for profile in ("", "rag"):
        check = CommandCheck(profile=profile)
        await check.update(server(split), T4)
        said.append([finding.severity for finding in check.findings if finding.rule == "X1"])

    assert said == [["info"], ["warning"]]


async def test_first_values_for_a_kind_of_traffic_are_not_for_a_server_that_is_measured() -> None:
    check = CommandCheck(profile="batch")
    await check.update(server({"model": "Qwen/Qwen2.5-1.5B-Instruct", "max_num_seqs": 8}), T4)

    assert not [finding for finding in check.findings if finding.rule == "W1"]
