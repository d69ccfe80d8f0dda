"""Which rules of an HTTPRoute belong to a target, and what stands against a split."""

import pytest

from flettner.actuators.gateway.backends import complete
from flettner.actuators.gateway.rules import choose_rules, home_of, rule_obstacles
from flettner.agent.domain.errors import ActError
from flettner.clients.kubernetes.documents import Json

CHAT: Json = {"name": "chat", "backendRefs": [{"name": "vllm", "port": 80}]}
DOCS: Json = {"name": "docs", "backendRefs": [{"name": "docs", "port": 80}]}
MIRROR: Json = {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "vllm", "port": 80}}}


def document(*rules: Json) -> Json:
    return {"metadata": {"name": "chat"}, "spec": {"rules": list(rules)}}


@pytest.mark.parametrize(("rule", "chosen"), [("", [0, 1]), ("1", [1]), ("docs", [1])])
def test_the_option_chooses_rules_by_name_or_place(rule: str, chosen: list[int]) -> None:
    assert choose_rules(document(CHAT, DOCS), rule) == chosen


@pytest.mark.parametrize("rule", ["2", "other"])
def test_a_rule_that_does_not_exist_is_an_error_that_names_the_others(rule: str) -> None:
    with pytest.raises(ActError, match="chat, docs"):
        choose_rules(document(CHAT, DOCS), rule)


def test_rules_of_different_backends_need_the_option() -> None:
    with pytest.raises(ActError, match="name the target's with `rule`"):
        home_of(document(CHAT, DOCS), [0, 1])


def test_several_rules_with_the_same_backend_are_split_together() -> None:
    assert home_of(document(CHAT, {**CHAT, "name": "more"}), [0, 1]) == complete(CHAT["backendRefs"])


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ([CHAT, {**CHAT, "name": "more"}], "rule more sends requests to vllm too"),
        ([{**CHAT, "sessionPersistence": {"type": "Cookie"}}], "sessionPersistence"),
        ([{**CHAT, "filters": [MIRROR]}], "mirrors requests to vllm"),
        ([{"backendRefs": [{"name": "vllm", "port": 80, "filters": [MIRROR]}]}], "mirrors requests to vllm"),
    ],
)
def test_what_would_make_a_split_wrong_is_named(rules: list[Json], why: str) -> None:
    obstacles = rule_obstacles(document(*rules), [0], home_of(document(*rules), [0]), "ns")

    assert len(obstacles) == 1
    assert why in obstacles[0]


def test_rules_of_other_services_do_not_matter() -> None:
    route = document(CHAT, DOCS)

    assert rule_obstacles(route, [0], home_of(route, [0]), "ns") == []
