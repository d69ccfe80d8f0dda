from typing import Any

import pytest

from flettner.tools.docker_proxy.create import create_reasons, update_reasons
from flettner.tools.docker_proxy.endpoints import connect_reasons, disconnect_reasons, networks_named
from flettner.tools.docker_proxy.fields import FieldContext
from flettner.tools.docker_proxy.mounts import volumes_named
from tests.unit.docker_proxy.specimens import (
    ESCALATIONS,
    EVERYWHERE,
    Escalation,
    body,
    context,
    files,
    policy,
)


def test_the_create_body_of_an_ordinary_green_passes() -> None:
    assert list(create_reasons(body(), context())) == []


@pytest.mark.parametrize("escalation", ESCALATIONS, ids=lambda it: it.name)
def test_an_escalation_is_refused_for_its_own_reason_only(escalation: Escalation) -> None:
    reasons = list(create_reasons(body(escalation.host_config, **escalation.config), context()))

    assert reasons
    assert all(escalation.reason in reason for reason in reasons)


def test_the_table_holds_many_different_escalations() -> None:
    assert len({escalation.name for escalation in ESCALATIONS}) == len(ESCALATIONS) >= 60


@pytest.mark.parametrize(
    ("host_config", "tables"),
    [
        ({"IpcMode": "host", "SecurityOpt": ["label=disable"]}, {"create": {"ipc_host": True}}),
        ({"NetworkMode": "host"}, {"networks": {"host": True}}),
        ({"SecurityOpt": ["seccomp=unconfined"]}, {"create": {"security_opt": ["seccomp=unconfined"]}}),
        ({"Binds": ["/srv/models:/m:ro,z"]}, {"mounts": {"relabel": True}}),
        ({"Binds": ["/srv/cache/vllm:/m", "/srv/cache/vllm:/n:ro", "/anonymous"]}, {}),
        ({"PublishAllPorts": True}, {"networks": {"publish": ["127.0.0.1", EVERYWHERE]}}),
        ({"Links": ["redis:cache"]}, {}),
        ({"LogConfig": {"Type": "syslog"}}, {"create": {"log_drivers": ["syslog"]}}),
        ({"Future": {}}, {"create": {"ignore_empty": ["Future"]}}),
        ({"DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}]}, {"create": {"gpus": ["*"]}}),
        ({"MaskedPaths": None, "ReadonlyPaths": None}, {}),
    ],
    ids=lambda it: str(it)[:60],
)
def test_entries_listed_in_the_policy_pass(host_config: dict[str, Any], tables: dict[str, Any]) -> None:
    assert list(create_reasons(body(host_config), context(**tables))) == []


def test_a_newer_field_is_tolerated_only_while_it_is_empty() -> None:
    tolerant = context(create={"ignore_empty": ["Future"]})

    assert list(create_reasons(body({"Future": ["x"]}), tolerant)) != []


def test_a_reason_never_quotes_the_environment() -> None:
    reasons = create_reasons(body(Env=[{"HF_TOKEN": "hunter2"}]), context())

    assert "hunter2" not in " ".join(reasons)


def test_all_networks_and_volumes_of_a_body_are_found() -> None:
    mounts = [{"Type": "volume", "Source": "b", "Target": "/b"}, {"Type": "volume", "Target": "/c"}]
    made = body({"Binds": ["a:/a", "/srv/models:/m:ro"], "Mounts": mounts, "NetworkMode": "default"})

    assert list(volumes_named(made["HostConfig"])) == ["a", "b"]
    assert list(networks_named(made)) == ["bridge", "llm"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"RestartPolicy": {"Name": "no"}}, ""),
        ({"RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 3}}, ""),
        ({"RestartPolicy": {"Name": "no"}, "Memory": 0}, "Memory: not a field"),
        ({"RestartPolicy": {"Name": "no"}, "Devices": []}, "Devices: not a field"),
        ({"restartPolicy": {"Name": "no"}}, "would read this key as RestartPolicy"),
        ({"RestartPolicy": {"Name": "sometimes"}}, "is not one of"),
        ({}, "RestartPolicy: is missing"),
    ],
)
def test_an_update_may_change_only_the_restart_policy(changes: dict[str, Any], reason: str) -> None:
    reasons = list(update_reasons(changes, context()))

    assert bool(reasons) == bool(reason)
    assert reason in "; ".join(reasons)


def test_a_network_connection_may_use_only_listed_aliases() -> None:
    endpoint = {"Aliases": ["chat", "postgres"]}

    assert "'postgres' is not in" in "".join(
        connect_reasons({"Container": "vllm", "EndpointConfig": endpoint}, context())
    )
    assert list(disconnect_reasons({"Container": "vllm", "Force": True}, context())) == []


def test_a_listed_directory_that_is_a_symlink_is_followed() -> None:
    def linked(path: str) -> tuple[str, bool]:
        return ("/srv/models", True) if path == "/models" else files(path)

    moved = FieldContext(policy=policy(mounts={"read": ["/models"]}), files=linked)

    assert list(create_reasons(body({"Binds": ["/srv/models/llama:/m:ro", "/models:/n:ro"]}), moved)) == []
