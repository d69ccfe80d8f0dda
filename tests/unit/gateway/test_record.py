"""The record in the annotation, and the patches that change only what is flettner's."""

import pytest

from flettner.actuators.gateway.acceptance import find_refusals, find_waiting
from flettner.actuators.gateway.record import (
    SplitRecord,
    annotation,
    end_lease,
    record_of,
    records,
    rules_with,
    write_record,
)
from flettner.agent.domain.errors import ActError
from flettner.clients.kubernetes.documents import Json

KEY = annotation("chat")
HOME: list[Json] = [{"kind": "Service", "name": "vllm", "port": 80, "weight": 1}]
SPLIT: list[Json] = [
    {"kind": "Service", "name": "flettner-vllm", "port": 8000, "weight": 95},
    {"kind": "Service", "name": "flettner-r1", "port": 8000, "weight": 5},
]
RECORD = SplitRecord(
    epoch=3,
    process="a",
    number=7,
    renewal=2,
    weights={"vllm": 95, "chat-r1": 5},
    addresses={"vllm": "flettner-vllm.ns.svc:8000", "chat-r1": "flettner-r1.ns.svc:8000"},
    fallback="vllm",
    leased="chat-r1",
    lease_s=15.0,
    closed_s=0.0,
    home=HOME,
    written=SPLIT,
    back=HOME,
)


def document(*rules: list[Json], text: str = "") -> Json:
    annotations = {"people": "own"} | ({KEY: text} if text else {})
    metadata = {"name": "chat", "resourceVersion": "12", "annotations": annotations, "generation": 4}
    return {"metadata": metadata, "spec": {"rules": [{"backendRefs": refs} for refs in rules]}}


def test_a_record_is_read_back() -> None:
    assert record_of(document(SPLIT, text=RECORD.text()), KEY) == RECORD
    assert list(records(document(SPLIT, text=RECORD.text()))) == [(KEY, RECORD)]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"epoch": 1}', RECORD.text().replace("15.0", '"long"')])
def test_a_record_that_was_changed_is_an_error_that_says_what_to_do(text: str) -> None:
    route = document(SPLIT, text="x")
    route["metadata"]["annotations"][KEY] = text

    with pytest.raises(ActError, match="remove it"):
        record_of(route, KEY)
    assert list(records(route)) == []


def test_a_write_changes_its_rules_and_its_annotation_only() -> None:
    patch = write_record(document(HOME, HOME, SPLIT), KEY, RECORD, [1, 2], SPLIT)

    assert patch == [
        {"op": "add", "path": "/metadata/resourceVersion", "value": "12"},
        {"op": "add", "path": "/metadata/annotations", "value": {"people": "own", KEY: RECORD.text()}},
        {"op": "replace", "path": "/spec/rules/1/backendRefs", "value": SPLIT},
    ]


def test_the_end_of_a_lease_leaves_rules_that_a_third_party_changed() -> None:
    other: list[Json] = [{"name": "other", "port": 80}]

    patch = end_lease(document(other, SPLIT), KEY, RECORD)

    assert [operation["path"] for operation in patch[2:]] == ["/spec/rules/1/backendRefs"]
    assert patch[2]["value"] == HOME
    assert '"ended": true' in patch[1]["value"][KEY]
    assert rules_with(document(other, SPLIT), SPLIT) == [1]


def conditions(accepted: str, generation: int, resolved: str = "True") -> Json:
    route: Json = document(SPLIT)
    route["status"] = {
        "parents": [
            {
                "parentRef": {"name": "gate"},
                "conditions": [
                    {"type": "Accepted", "status": accepted, "observedGeneration": generation},
                    {"type": "ResolvedRefs", "status": resolved, "observedGeneration": generation},
                ],
            }
        ]
    }
    return route


@pytest.mark.parametrize(
    ("route", "waits", "refused"),
    [
        (document(SPLIT), True, False),
        (conditions("True", 4), False, False),
        (conditions("True", 3), True, False),
        (conditions("False", 4), True, True),
        (conditions("True", 4, resolved="False"), True, True),
    ],
    ids=["no status", "accepted", "an older generation", "refused", "unknown backend"],
)
def test_a_change_is_accepted_once_each_gateway_says_so(route: Json, *, waits: bool, refused: bool) -> None:
    assert bool(find_waiting(route)) is waits
    assert bool(find_refusals(route)) is refused
