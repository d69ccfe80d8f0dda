"""A proposal changes flags only, unless an admin's names an image or a program that the config allows."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from flettner.actuators.docker.clone import CreateRequest, clone
from flettner.actuators.docker.container import Container, Json
from flettner.actuators.docker.dry_run import create_body
from flettner.agent.api.app import build_app
from flettner.agent.api.tokens import Tokens
from flettner.agent.domain.events import ChangeAsked
from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.model import Bound, Server
from flettner.agent.domain.state import State
from flettner.agent.domain.upgrade import is_upgrade
from flettner.agent.machine.guard import Guard
from flettner.agent.machine.step import Machine
from flettner.agent.machine.transitions import Rules
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.values import Value
from tests.support.api_tokens import store_roles
from tests.support.docker_documents import container, recorded
from tests.support.fake_daemon_view import NOON, MachineDaemonView
from tests.support.machine_stories import rules

SAGEMAKER = container(
    entrypoint=("sagemaker-entrypoint.sh",),
    config={"Env": ["PATH=/usr/bin", "SM_VLLM_MODEL=m", "SM_VLLM_MAX_NUM_SEQS=8", "HF_TOKEN=secret"]},
)
CONTAINERS = {"with many options": recorded(), "with flags in its environment": SAGEMAKER}
OF_DOCKER: dict[str, Value] = {
    "image": "evil/vllm:latest",
    "mounts": "/:/host",
    "volume": "/:/host",
    "binds": "/:/host:rw",
    "privileged": True,
    "cap_add": "SYS_ADMIN",
    "security_opt": "seccomp=unconfined",
    "devices": "/dev/mem",
    "runtime": "runc",
    "user": "root",
    "pid_mode": "host",
    "ipc_mode": "host",
    "network_mode": "host",
    "env": "LD_PRELOAD=/evil.so",
    "environment": "LD_PRELOAD=/evil.so",
    "entrypoint": "/bin/sh",
    "command": "sh -c evil",
    "restart_policy": "always",
    "labels": "flettner.target=other",
}
VALUES: tuple[Value, ...] = (
    *(None, True, False, 0, 1, 8, -5, 8.5, 0.5, 10**9),
    *("1", "evil", "8 --model evil", "--model=evil", "8; rm -rf /", "$(evil)", "../../etc", "a,b", "[1,2]"),
)


def serving(spec: Container) -> State:
    blue = Server(name="vllm", setting=spec.serve.setting, address="127.0.0.1:8000", ours=False)
    return State(target="chat", mode="approve", fleet=Fleet(servers=(blue,)))


def admitted(given: Rules, state: State, to: dict[str, Value]) -> dict[str, Value]:
    """The change as the machine takes it; empty if it refuses it."""
    change = ChangeAsked(at=NOON, actor="mallory", to=to, reason="because")
    after, _ = Machine(given).step(state, change)
    pending = after.suggestions.pending
    return dict(pending[0].proposal.to) if pending else {}


def like(spec: Container, to: dict[str, Value]) -> CreateRequest:
    return clone(spec, name="green", labels={}, setting={**spec.serve.setting, **to})


def fixed(body: Json) -> Json:
    """All of a create body but the flags of vLLM."""
    env = [line for line in body["Env"] if not line.startswith("SM_VLLM_")]
    return {**body, "Cmd": None, "Env": env}


def unchangeable(request: CreateRequest) -> tuple[object, ...]:
    return request.image, request.name, request.networks, fixed(request.body)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_no_value_of_any_flag_changes_more_than_the_flags_of_a_container(kind: str) -> None:
    spec = Container.parse(CONTAINERS[kind])
    state, before = serving(spec), unchangeable(like(spec, {}))
    unchanged = create_body(spec, "python3", [spec.serve.argv], {})
    taken = [to for change in _changes() if (to := admitted(rules(), state, change))]
    for to in taken:
        with suppress(FlagError):
            green = like(spec, to)
            assert unchangeable(green) == before, to
            assert "evil" not in " ".join(green.argv), to
            assert fixed(create_body(spec, "python3", [green.argv], {})) == fixed(unchanged), to

    assert len(taken) > 100


def _changes() -> Iterator[dict[str, Value]]:
    for knob in KNOBS:
        for value in VALUES:
            yield {knob: value}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_name_that_the_bounds_allow_is_a_flag_and_no_field_of_docker(kind: str) -> None:
    spec = Container.parse(CONTAINERS[kind])
    bounds = {knob: Bound(allowed=(value,)) for knob, value in OF_DOCKER.items()}
    allowing = replace(rules(), guard=Guard(bounds=bounds))

    for knob, value in OF_DOCKER.items():
        to = admitted(allowing, serving(spec), {knob: value})
        assert to == ({} if is_upgrade(knob) else {knob: value})
        assert unchangeable(like(spec, to)) == unchangeable(like(spec, {}))


async def test_the_api_refuses_every_field_of_docker(tmp_path: Path) -> None:
    text = store_roles(tmp_path / "tokens", principal="mallory")["operator"]
    daemon = MachineDaemonView()
    server = TestServer(build_app(daemon, Tokens(tmp_path / "tokens", daemon.now)))
    answers = {}
    async with TestClient(server, headers={"Authorization": f"Bearer {text}"}) as client:
        for name, value in OF_DOCKER.items():
            body = {"to": {name: value, "max_num_seqs": 8}, "reason": "because"}
            async with client.post(
                "/v1/targets/chat/suggestions", json=body, headers={"Idempotency-Key": name}
            ) as response:
                answers[name] = (response.status, (await response.json())["detail"])

    for name, (status, detail) in answers.items():
        assert status == (403 if is_upgrade(name) else 409)
        assert f"change of {name}" in detail
    assert daemon.suggestions() == []
