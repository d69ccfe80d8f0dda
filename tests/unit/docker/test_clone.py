"""Clone a container: fields that are kept, fields that are replaced, notes and obstacles."""

from pathlib import Path
from typing import Any

import pytest

from flettner.actuators.docker.clone import CreateRequest, clone, find_obstacles, notes_of
from flettner.actuators.docker.container import Container, Json
from flettner.actuators.docker.registry import document_to_keep
from flettner.actuators.vllm.scheduler_class import SchedulerFolders
from flettner.actuators.vllm.serve_command import ReadFile
from flettner.agent.domain.errors import ActError
from flettner.vllm_facts.errors import FlagError
from tests.support.docker_documents import container, recorded

IMAGE = {"RepoDigests": ["vllm/vllm-openai@sha256:" + "ab" * 32]}
LABELS = {"flettner.server": "chat-r3", "flettner.epoch": "7"}
KEPT_CONFIG = (
    "Domainname",
    "Env",
    "Healthcheck",
    "StopSignal",
    "StopTimeout",
    "Tty",
    "User",
    "Volumes",
    "WorkingDir",
)
REPLACED_HOST = ("AutoRemove", "Binds", "Links", "Mounts", "PortBindings", "PublishAllPorts", "RestartPolicy")


def green(blue: Json, **asked: Any) -> CreateRequest:  # noqa: ANN401
    return clone(Container.parse(blue), **{"name": "green", "labels": LABELS, "setting": {}, **asked})


def notes(blue: Json) -> tuple[str, ...]:
    return notes_of(Container.parse(blue))


def recorded_document(blue: Json, image: Json | None) -> Json:
    return document_to_keep(Container.parse(blue), image)


def obstacles_of(blue: Json, image: Json | None, read_file: ReadFile | None = None) -> tuple[str, ...]:
    return find_obstacles(Container.parse(blue, read_file), image)


# What is kept.


def test_keeps_all_fields_that_are_not_specific_to_one_container() -> None:
    blue = recorded()
    body = green(blue).body

    assert {key: body[key] for key in KEPT_CONFIG} == {key: blue["Config"][key] for key in KEPT_CONFIG}
    assert {key: value for key, value in body["HostConfig"].items() if key not in REPLACED_HOST} == {
        key: value
        for key, value in blue["HostConfig"].items()
        if key not in {*REPLACED_HOST, "ConsoleSize", "ContainerIDFile"} and value is not None
    }


def test_pins_the_image_by_its_id_not_by_its_tag() -> None:
    blue = recorded()
    spec = green(blue)

    assert spec.image == spec.body["Image"] == blue["Image"]
    assert recorded_document(blue, IMAGE)["ImageDigest"] == IMAGE["RepoDigests"][0]


def test_changes_only_the_requested_flags() -> None:
    blue = recorded()
    setting = {"model": "tiny", "sim_start_s": 0.2, "max_num_seqs": 32}
    body = green(blue, setting=setting).body

    assert body["Entrypoint"] == blue["Config"]["Entrypoint"]
    assert body["Cmd"] == ["tiny", "--sim-start-s", "0.2", "--max-num-seqs", "32", "--api-key", "sekrit"]


def test_the_control_socket_of_green_lies_beside_that_of_blue() -> None:
    blue = container("m")
    blue["Config"]["Env"] = ["A=1", "FLETTNER_CONTROL=/run/vllm/control.sock", "BARE"]

    assert green(blue).body["Env"] == ["A=1", "FLETTNER_CONTROL=/run/vllm/green.sock", "BARE"]


def test_the_scheduler_class_is_mounted_with_a_folder_for_its_socket() -> None:
    blue = container("m")
    blue["Config"]["Env"] = ["PYTHONPATH=/app", "BARE"]
    folders = SchedulerFolders(Path("/state/scheduler"), Path("/state/control"))

    body = green(blue, scheduler=folders).body

    assert body["Env"] == [
        "PYTHONPATH=/opt/flettner/scheduler:/app",
        "BARE",
        "FLETTNER_CONTROL=/opt/flettner/control/green.sock",
    ]
    assert body["HostConfig"]["Mounts"] == [
        {"Type": "bind", "Source": "/state/scheduler", "Target": "/opt/flettner/scheduler", "ReadOnly": True},
        {"Type": "bind", "Source": "/state/control", "Target": "/opt/flettner/control", "ReadOnly": False},
    ]


def test_shares_anonymous_volumes_by_their_real_name() -> None:
    blue = recorded()
    names = {mount["Destination"]: mount.get("Name") for mount in blue["Mounts"]}
    host = green(blue).body["HostConfig"]

    assert host["Binds"] == [*blue["HostConfig"]["Binds"], f"{names['/anon']}:/anon"]
    assert host["Mounts"][0] == {"Type": "volume", "Target": "/anon2", "Source": names["/anon2"]}
    assert host["Mounts"][1:] == blue["HostConfig"]["Mounts"][1:]


def test_a_read_only_volume_stays_read_only() -> None:
    volume = {"Type": "volume", "Name": "v1", "Destination": "/w", "RW": False, "Mode": "ro"}

    assert green(container("m", mounts=[volume])).body["HostConfig"]["Binds"] == ["v1:/w:ro"]


def test_a_removed_entrypoint_stays_removed() -> None:
    assert green(container("vllm", "serve", "m", entrypoint=())).body["Entrypoint"] == [""]


# What is replaced.


def test_green_neither_restarts_nor_removes_itself() -> None:
    host = green(container("m", host={"AutoRemove": True})).body["HostConfig"]

    assert host["RestartPolicy"] == {"Name": "no", "MaximumRetryCount": 0}
    assert host["AutoRemove"] is False


def test_a_clone_is_published_on_loopback_at_its_own_port() -> None:
    anywhere = [{"HostIp": "127.0.0.1", "HostPort": ""}]
    body = green(recorded()).body

    assert body["HostConfig"]["PortBindings"] == {"8000/tcp": anywhere, "9000/tcp": anywhere}


def test_the_port_of_a_clone_is_published_even_if_the_original_publishes_none() -> None:
    blue = container("m", "--port", "9100", host={"PortBindings": {}})
    spec = green(blue)

    assert list(spec.body["HostConfig"]["PortBindings"]) == ["9100/tcp"]
    assert spec.body["ExposedPorts"] == {"9100/tcp": {}}
    assert any("9100 is not published" in note for note in notes(blue))


def test_ports_published_by_p_are_published_one_by_one() -> None:
    blue = container(
        "m",
        config={"ExposedPorts": {"8000/tcp": {}, "9/udp": {}}},
        host={"PublishAllPorts": True, "PortBindings": {}},
    )
    host = green(blue).body["HostConfig"]

    assert (sorted(host["PortBindings"]), host["PublishAllPorts"]) == (["8000/tcp", "9/udp"], False)


def test_a_clone_in_the_host_network_listens_on_another_port() -> None:
    blue = container("m", host={"NetworkMode": "host", "PortBindings": {}}, config={"Hostname": "thishost"})
    spec = green(blue, port=8101)

    assert spec.body["Cmd"] == ["m", "--port", "8101"]
    assert spec.body["HostConfig"]["PortBindings"] == {}
    assert spec.body["Hostname"] == "thishost"
    assert any("8000 of the host's network" in note for note in notes(blue))
    with pytest.raises(ActError, match="needs a port of its own"):
        green(blue)


def test_a_clone_joins_the_same_networks_under_its_own_name() -> None:
    spec = green(recorded())

    assert spec.body["NetworkingConfig"] == {"EndpointsConfig": {"llm-one": {"Aliases": ["green"]}}}
    assert spec.networks == (("llm-two", {"Aliases": ["green"]}),)


def test_networks_besides_the_default_one_are_joined_before_the_start() -> None:
    networks: dict[str, Json] = {
        "bridge": {"NetworkID": "b0"},
        "llm": {"NetworkID": "c0", "DriverOpts": {"a": "b"}},
    }
    spec = green(container("m", networks=networks))

    assert "NetworkingConfig" not in spec.body
    assert spec.networks == (("llm", {"Aliases": ["green"], "DriverOpts": {"a": "b"}}),)


def test_finds_the_name_of_a_network_given_by_its_id() -> None:
    blue = recorded()
    blue["HostConfig"]["NetworkMode"] = blue["NetworkSettings"]["Networks"]["llm-one"]["NetworkID"]

    assert list(green(blue).body["NetworkingConfig"]["EndpointsConfig"]) == ["llm-one"]


def test_a_disconnected_network_is_not_joined_silently() -> None:
    blue = recorded()
    del blue["NetworkSettings"]["Networks"]["llm-one"]

    with pytest.raises(ActError, match="docker network connect llm-one llm-vllm"):
        green(blue)


@pytest.mark.parametrize(
    ("hostname", "mode", "got"),
    [
        pytest.param("5be036dfc64c", "default", None, id="the id"),
        pytest.param("blue-host", "default", "green", id="by hand"),
        pytest.param("thishost", "host", "thishost", id="the host's"),
    ],
)
def test_a_clone_has_its_own_host_name(hostname: str, mode: str, got: str | None) -> None:
    blue = container("m", config={"Hostname": hostname}, host={"NetworkMode": mode})

    assert green(blue, port=8101).body.get("Hostname") == got


def test_does_not_copy_labels_of_the_owner() -> None:
    blue = recorded()
    blue["Config"]["Labels"] |= {"flettner.server": "chat-r2", "flettner.like": "vllm"}

    assert green(blue).body["Labels"] == {"team": "ml", **LABELS}


def test_links_are_written_in_the_format_of_create() -> None:
    blue = container("m", host={"Links": ["/db:/vllm/store"]})
    spec = green(blue)

    assert spec.body["HostConfig"]["Links"] == ["db:store"]
    assert any("--link db:store" in note for note in notes(blue))


def test_a_snapshot_creates_the_same_container_as_the_original() -> None:
    blue = recorded()

    assert green(recorded_document(blue, IMAGE)) == green(blue)
    assert recorded_document(recorded_document(blue, IMAGE), None) == recorded_document(blue, IMAGE)


def test_a_clone_does_not_change_the_document() -> None:
    blue = recorded()
    green(blue, setting={"model": "other"}).body["HostConfig"]["Ulimits"].clear()

    assert blue == recorded()


def test_the_repr_of_a_clone_contains_no_secrets() -> None:
    assert "sekrit" not in repr(green(recorded()))


# Notes and obstacles.


def test_notes_what_is_not_shared() -> None:
    noted = "\n".join(notes(recorded()))

    for word in (
        "10.211.7.77",
        "/anon ",
        "/anon2 ",
        "compose",
        "host name blue-host",
    ):
        assert word in noted


@pytest.mark.parametrize(
    ("blue", "note"),
    [
        (container("m", host={"AutoRemove": True}), "--rm"),
        (container("m", host={"LogConfig": {"Type": "none"}}), "keeps no log"),
        (container("m", config={"Env": ["VLLM_CPU_KVCACHE_SPACE=4"]}), "VLLM_CPU_OMP_THREADS_BIND=nobind"),
        (
            container("m", host={"IpcMode": "container:0123456789abcdef"}),
            "IpcMode is that of another container",
        ),
        (container("m", config={"MacAddress": "02:42:ac:11:00:09"}), "MAC address"),
        (container("m", config={"Labels": {"traefik.enable": "true"}}), "bypass the proxy"),
    ],
)
def test_notes_what_needs_care(blue: Json, note: str) -> None:
    assert [line for line in notes(blue) if note in line]


def test_a_plain_container_only_notes_that_its_published_port_goes_dead() -> None:
    assert obstacles_of(container("m"), IMAGE) == ()
    [note] = notes(container("m"))
    assert note.startswith(
        "a promotion stops vllm: nothing answers any more at port 8000 of this host, since"
    )
    assert notes(container("m", config={"Labels": LABELS})) == ()


def test_notes_every_name_and_port_that_goes_dead_with_a_promotion() -> None:
    [note] = [line for line in notes(recorded()) if line.startswith("a promotion stops")]

    for place in (
        "port 28733 of this host",
        "llm-vllm, vllm, blue, blue-host in the network llm-one",
        "llm-vllm, llm, blue-host in the network llm-two",
    ):
        assert place in note


@pytest.mark.parametrize(
    ("blue", "why"),
    [
        (
            container("m", host={"NetworkMode": "container:0123456789abcdef"}),
            "network of the container 0123456789ab",
        ),
        (container("m", host={"NetworkMode": "none"}), "no network"),
        (container("m", "--uds", "/run/v.sock"), "Unix socket"),
        (container("m", "--ssl-keyfile", "k", "--ssl-certfile", "c"), "TLS"),
        (container("m", "--host", "127.0.0.1"), "inside the container"),
        (container("m", "--port", "0"), "no port to be reached on"),
        (container("m", config={"Labels": {"com.docker.swarm.service.name": "s"}}), "Swarm"),
        (container("m", config={"Labels": {"io.kubernetes.pod.name": "p"}}), "Kubernetes"),
    ],
)
def test_reports_obstacles_and_refuses_to_clone(blue: Json, why: str) -> None:
    assert [line for line in obstacles_of(blue, IMAGE) if why in line]
    with pytest.raises(ActError, match=why):
        green(blue)


def test_reports_a_shell_command_and_refuses_to_clone() -> None:
    blue = container("vllm serve m", entrypoint=("/bin/sh", "-c"))

    assert obstacles_of(blue, IMAGE)[0].startswith("its command cannot be read: the command starts a shell")
    with pytest.raises(ActError, match="shell"):
        green(blue)
    with pytest.raises(FlagError, match="shell"):
        green(blue, setting={"seed": 1})


def test_reports_an_unreadable_config_file() -> None:
    blue = container("m", "--config", "/c.yaml")

    assert "mount the file" in obstacles_of(blue, IMAGE, lambda _: None)[0]
    assert obstacles_of(blue, IMAGE, lambda _: "seed: 1") == ()


def test_reports_a_missing_image() -> None:
    assert "not on this host any more" in obstacles_of(container("m"), None)[0]
