"""The Deployment and the Service of a new server."""

from dataclasses import replace
from pathlib import Path

import pytest

from flettner.actuators.kubernetes.green import keep_labels, make_deployment
from flettner.actuators.kubernetes.service import make_service
from flettner.actuators.kubernetes.workload import Workload
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from tests.support.kubernetes_documents import deployment

SITE = Site(target="chat", state_dir=Path("/state/chat"), epoch=3)
GREEN = Server(name="chat-r2", setting={"model": "m", "max_num_seqs": 16}, like="vllm")


def test_green_is_a_copy_with_the_new_flags() -> None:
    blue = Workload.parse(deployment(replicas=2))

    green = Workload.parse(make_deployment(SITE, GREEN, blue, []))

    assert green.serve.setting == GREEN.setting
    assert (green.replicas, green.like, green.epoch, green.ours) == (GREEN.replicas, "vllm", 3, True)
    assert green.container_document["resources"] == blue.container_document["resources"]
    assert green.selector.items() <= green.template["metadata"]["labels"].items()


def test_no_selector_of_blue_or_of_a_service_selects_green() -> None:
    blue = Workload.parse(deployment())
    selectors = [{"team": "search"}, {"app": "other"}, {}]

    labels = make_deployment(SITE, GREEN, blue, selectors)["spec"]["template"]["metadata"]["labels"]

    assert not blue.selector.items() <= labels.items()
    assert "team" not in labels
    assert keep_labels(blue, selectors) == ({}, ("app", "team"))


def test_green_keeps_the_labels_that_select_no_traffic() -> None:
    assert keep_labels(Workload.parse(deployment()), []) == ({"team": "search"}, ("app",))


def test_the_making_of_green_changes_nothing_of_blue() -> None:
    document = deployment()
    before = str(document)

    make_deployment(SITE, GREEN, Workload.parse(document), [{"team": "search"}])

    assert str(document) == before


def test_the_service_is_headless_and_selects_the_pods_of_the_deployment() -> None:
    spec = make_service(SITE, GREEN.name, GREEN.like, Workload.parse(deployment()))["spec"]

    assert (spec["clusterIP"], spec["selector"], spec["ports"][0]["port"]) == ("None", {"app": "vllm"}, 8000)


@pytest.mark.parametrize(
    ("ours", "replicas", "any_state"), [(True, 1, True), (True, 2, False), (False, 1, False)]
)
def test_only_a_green_with_one_pod_keeps_its_address_while_it_is_not_ready(
    ours: bool, replicas: int, any_state: bool
) -> None:
    blue = deployment(replicas=replicas)
    green = make_deployment(SITE, replace(GREEN, replicas=replicas), Workload.parse(blue), [])

    spec = make_service(SITE, GREEN.name, GREEN.like, Workload.parse(green if ours else blue))["spec"]

    assert spec["publishNotReadyAddresses"] is any_state
