"""Labels and names of our containers."""

from pathlib import Path

import pytest

from flettner.actuators.docker import registry as docker_labels
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.clients.docker.labels import SERVER

SITE = Site(target="chat", state_dir=Path("/var/lib/flettner/chat"), epoch=3)


def test_labels_name_site_server_and_setting_digest() -> None:
    server = Server(name="chat-r3", setting={"max_num_seqs": 8, "hf_token": "secret"}, like="chat-r2")

    labels = docker_labels.server_labels(SITE, server)

    assert labels | docker_labels.site_labels(SITE) == labels
    assert labels[SERVER] == "chat-r3"
    assert labels[docker_labels.LIKE] == "chat-r2"
    assert labels[docker_labels.EPOCH] == "3"
    assert labels[docker_labels.SETTING].startswith("sha256:")
    assert "secret" not in str(labels)


@pytest.mark.parametrize(
    "other",
    [
        Site(target="code", state_dir=SITE.state_dir, epoch=3),
        Site(target="chat", state_dir=Path("/srv/chat"), epoch=3),
    ],
    ids=["target", "state_dir"],
)
def test_two_sites_share_neither_labels_nor_names(other: Site) -> None:
    assert docker_labels.site_labels(SITE) != docker_labels.site_labels(other)
    assert docker_labels.container_name(SITE, "chat-r3") != docker_labels.container_name(other, "chat-r3")


def test_a_newer_daemon_finds_containers_of_an_older_one() -> None:
    newer = Site(target="chat", state_dir=SITE.state_dir, epoch=4)

    assert docker_labels.site_labels(newer) == docker_labels.site_labels(SITE)
    assert docker_labels.container_name(newer, "chat-r3") == docker_labels.container_name(SITE, "chat-r3")


def test_a_container_name_is_valid_and_contains_the_server() -> None:
    assert docker_labels.container_name(SITE, "chat-r3").startswith("flettner-chat-r3-")
    assert docker_labels.container_name(SITE, "c h/ät").startswith("flettner-c-h-t-")
