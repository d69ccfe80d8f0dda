"""The API conforms to its OpenAPI document for every role; schemathesis generates the requests.

The pytest plugin of schemathesis is disabled in pyproject.toml because it adds a second to every run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from requests import Request
from schemathesis import Case, CheckFunction, GenerationMode, Response
from schemathesis.generation.stateful.state_machine import APIStateMachine
from schemathesis.specs.openapi.checks import positive_data_acceptance

from flettner.agent.api.app import OPERATIONS
from flettner.agent.api.openapi import document
from flettner.agent.api.tokens import Tokens, load_tokens
from flettner.agent.config.listen import Role
from tests.support.api_tokens import store_roles
from tests.support.fake_daemon_view import FakeDaemonView
from tests.support.sampling import FULL, examples, sampled
from tests.support.served_api import served

EXAMPLES = examples(8)  # of valid and of invalid requests for an operation and a role
SCHEMA = schemathesis.openapi.from_dict(document(OPERATIONS))
BOUNDED = [operation.name for operation in OPERATIONS if operation.media != "text/event-stream"]
WITH_TEXT = {
    *("askForChange", "undoPromotion", "predictChange"),
    *("approveSuggestion", "denySuggestion", "abortRollout"),
}
ROLES: tuple[Role | None, ...] = (None, "viewer", "operator", "admin")
PAIRS = sampled(product(BOUNDED, ROLES), 3)  # prime to the number of roles: each operation, and each role
PLANTED = "PLANTED-abcdef0123456789"
THERE = {"name": ["chat"], "id": ["chat-s1", "chat-s2", "chat-o1"], "receiver": ["ops"]}


@dataclass(frozen=True)
class Site:
    url: str
    daemon: FakeDaemonView
    bearers: Mapping[Role, str]
    secrets: tuple[str, ...]  # forbidden in every response


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    path: Path = tmp_path_factory.mktemp("api") / "tokens"
    texts = store_roles(path)
    tokens = load_tokens(path).values()
    daemon = FakeDaemonView()
    begin(daemon)
    secrets = [part for text in texts.values() for part in (text, text[-43:])]
    secrets += [token.sha256 for token in tokens]
    assert {suggestion.id for suggestion in daemon.suggestions()} < set(THERE["id"])
    with served(daemon, Tokens(path, daemon.now)) as port:
        yield Site(
            url=f"http://127.0.0.1:{port}",
            daemon=daemon,
            bearers=texts,
            secrets=(*secrets, PLANTED),
        )


def begin(daemon: FakeDaemonView) -> None:
    """Reset the site and plant a secret in every command line, log and free text."""
    daemon.__post_init__()
    state = daemon.targets()[daemon.target].state
    assert state.fleet.blue is not None
    blue = replace(state.fleet.blue, setting={**state.fleet.blue.setting, "api_key": PLANTED})
    daemon.set(
        replace(
            state,
            fleet=replace(state.fleet, servers=(blue,)),
            note=f"vllm serve m --api-key={PLANTED} exited",
        )
    )
    daemon.suggest({"max_num_seqs": 128}, why=f"HF_TOKEN={PLANTED} was refused")
    daemon.suggest({"max_num_seqs": 96}, why=f"http://ann:{PLANTED}@mirror.example did not answer")


def is_sent(parameter: dict[str, Any]) -> bool:
    """Return whether requests writes this query parameter into the URL."""
    return "?" in str(Request("GET", "http://flettner/", params=parameter).prepare().url)


@st.composite
def cases(draw: st.DrawFn, name: str, mode: GenerationMode) -> Case[Any]:
    """Draw valid or invalid requests of an operation; many refer to existing objects."""
    case: Case[Any] = draw(SCHEMA.find_operation_by_id(name).as_strategy(generation_mode=mode))
    # a list of nothing, or of empty objects, is not sent, so that the request may be valid without it
    assume(all(is_sent({key: value}) for key, value in (case.query or {}).items()))
    if mode is GenerationMode.POSITIVE and draw(st.booleans()):
        for variable in case.path_parameters or ():
            case.path_parameters[variable] = draw(st.sampled_from(THERE[variable]))
    return case


@pytest.mark.parametrize(("name", "role"), PAIRS)
def test_responses_to_valid_requests_match_openapi_and_contain_no_secret(
    site: Site, name: str, role: Role | None
) -> None:
    ask(site, name, role, GenerationMode.POSITIVE)


@pytest.mark.parametrize(("name", "role"), [pair for pair in PAIRS if pair[0] != "health"])  # takes nothing
def test_responses_to_invalid_requests_match_openapi_and_contain_no_secret(
    site: Site, name: str, role: Role | None
) -> None:
    ask(site, name, role, GenerationMode.NEGATIVE)


def ask(site: Site, name: str, role: Role | None, mode: GenerationMode) -> None:
    headers = {"Authorization": f"Bearer {site.bearers[role]}"} if role else {}
    # a JSON schema can require neither printable Unicode nor a number of bytes
    excluded: list[CheckFunction] = [positive_data_acceptance] if name in WITH_TEXT else []

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=cases(name, mode))
    def check(case: Case[Any]) -> None:
        if mode is GenerationMode.POSITIVE and "Idempotency-Key" in (case.headers or {}):
            case.headers["Idempotency-Key"] = (
                uuid4().hex
            )  # a reused key is refused, which no schema expresses
        response = case.call_and_validate(
            base_url=site.url, headers=headers, excluded_checks=excluded, timeout=30
        )
        text_seen = response.content.decode(errors="replace") + str(response.headers)
        assert not [secret for secret in site.secrets if secret in text_seen]

    check()


@pytest.mark.parametrize("role", ROLES)
def test_responses_to_request_sequences_match_openapi_and_contain_no_secret(
    site: Site, role: Role | None
) -> None:
    """Each request takes its identifiers from earlier responses."""
    schema = schemathesis.openapi.from_dict(document(OPERATIONS))
    schema.config.generation.update(modes=[GenerationMode.POSITIVE])
    machine: type[APIStateMachine] = schema.as_state_machine()
    statuses: set[tuple[str, int]] = set()

    class Row(machine):  # type: ignore[misc,valid-type]
        def setup(self) -> None:
            begin(site.daemon)

        def get_call_kwargs(self, _: Case[Any]) -> dict[str, Any]:
            headers = {"Authorization": f"Bearer {site.bearers[role]}"} if role else {}
            return {"base_url": site.url, "headers": headers, "timeout": 30}

        def before_call(self, case: Case[Any]) -> None:
            if case.method == "POST":
                case.headers["Idempotency-Key"] = uuid4().hex
            if case.operation.label.endswith("/approve") and isinstance(case.body, dict):
                digests = {suggestion.id: suggestion.digest for suggestion in site.daemon.suggestions()}
                case.body["digest"] = digests.get(case.path_parameters["id"], case.body.get("digest"))

        def validate_response(self, response: Response, case: Case[Any], *_: object, **__: object) -> None:
            statuses.add((case.operation.label, response.status_code))
            case.validate_response(response, excluded_checks=[positive_data_acceptance])
            text_seen = response.content.decode(errors="replace") + str(response.headers)
            assert not [secret for secret in site.secrets if secret in text_seen]

    Row.run(
        settings=settings(
            max_examples=30 if FULL else 24,
            stateful_step_count=8,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
    )

    reached = {label for label, status in statuses if status < 300}
    changed = {label for label in reached if label.startswith("POST")}
    assert (bool(reached), bool(changed)) == (role is not None, role in {"operator", "admin"})
