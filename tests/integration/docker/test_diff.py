"""Field-by-field comparison of containers, and clones of a container with many options."""

from typing import Any

import pytest

from flettner.actuators.docker import diff
from flettner.actuators.docker.clone import clone, find_obstacles
from flettner.actuators.docker.container import Container, Json
from flettner.actuators.docker.registry import document_to_keep
from tests.support.docker_documents import container, recorded, started
from tests.support.docker_site import BENCH, Bench


def differences(blue: Json, green: Json) -> tuple[str, ...]:
    return diff.differences(Container.parse(blue), Container.parse(green))


def changed(path: str, value: Any) -> Json:  # noqa: ANN401
    document = recorded()
    *way, last = path.split("/")
    place: Any = document
    for key in way:
        place = place[int(key) if isinstance(place, list) else key]
    place[last] = value
    return document


def test_a_container_does_not_differ_from_itself() -> None:
    assert differences(recorded(), recorded()) == ()


def test_reports_flags_one_by_one() -> None:
    blue = container("m", "--max-num-seqs", "16", "--enforce-eager", "--seed", "1")
    green = container("m", "--max-num-seqs", "32", "--seed", "1", "--block-size", "32")

    assert differences(blue, green) == (
        "Config.Cmd block_size: not given → 32",
        "Config.Cmd enforce_eager: true → not given",
        "Config.Cmd max_num_seqs: 16 → 32",
    )


def test_reports_another_spelling_of_the_same_flag() -> None:
    blue, green = container("m", "--seed", "1"), container("m", "--seed=1")

    assert differences(blue, green) == (
        'Config.Cmd: ["vllm", "serve", "m", "--seed", "1"] → ["vllm", "serve", "m", "--seed=1"]',
    )


def test_compares_an_unparsable_command_verbatim() -> None:
    blue = container("serve m", entrypoint=("sh", "-c"))
    green = container("serve n", entrypoint=("sh", "-c"))

    assert differences(blue, green) == ('Config.Cmd: ["sh", "-c", "serve m"] → ["sh", "-c", "serve n"]',)


def test_reports_another_entry_script() -> None:
    blue = container("vllm", "serve", "m", entrypoint=("/a.sh",))
    green = container("vllm", "serve", "m", entrypoint=("/b.sh",))

    assert differences(blue, green) == (
        'Config.Cmd: ["/a.sh", "vllm", "serve", "m"] → ["/b.sh", "vllm", "serve", "m"]',
    )


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("Image", "sha256:0", "Image: "),
        ("Config/User", "1000", "Config.User: 0:0 → 1000"),
        ("Config/WorkingDir", "/", "Config.WorkingDir: /tmp → /"),
        ("Config/StopTimeout", None, "Config.StopTimeout: 33 → not given"),
        ("Config/Healthcheck/Retries", 9, "Config.Healthcheck.Retries: 4 → 9"),
        ("Config/Labels/team", "x", "Config.Labels.team: ml → x"),
        ("HostConfig/Memory", 0, "HostConfig.Memory: 1073741824 → 0"),
        ("HostConfig/ShmSize", 1, "HostConfig.ShmSize: 67108864 → 1"),
        ("HostConfig/Ulimits", [], "HostConfig.Ulimits: "),
        ("HostConfig/Devices", [], "HostConfig.Devices: "),
        ("HostConfig/DeviceRequests", None, "HostConfig.DeviceRequests: "),
        ("HostConfig/CapAdd", [], "HostConfig.CapAdd: "),
        ("HostConfig/Sysctls/net.core.somaxconn", "1", "HostConfig.Sysctls.net.core.somaxconn: 512 → 1"),
        ("HostConfig/LogConfig/Config/max-size", "1m", "HostConfig.LogConfig.Config.max-size: 5m → 1m"),
        ("HostConfig/RestartPolicy/Name", "always", "HostConfig.RestartPolicy.Name: unless-stopped → always"),
        ("HostConfig/Tmpfs", {}, "HostConfig.Tmpfs./t: size=8m → not given"),
        ("HostConfig/NetworkMode", "llm-two", "HostConfig.NetworkMode: llm-one → llm-two"),
        (
            "HostConfig/PortBindings",
            {"8000/tcp": []},
            "HostConfig.PortBindings.9000/tcp: published → not given",
        ),
        ("Mounts/0/Source", "/opt", "Mounts./usr.Source: /usr → /opt"),
        ("Mounts/0/RW", True, "Mounts./usr.RW: false → true"),
    ],
)
def test_reports_every_other_differing_field(path: str, value: object, line: str) -> None:
    [lines] = differences(recorded(), changed(path, value))

    assert lines.startswith(line)


def test_reports_a_network_of_only_one_container() -> None:
    green = recorded()
    del green["NetworkSettings"]["Networks"]["llm-two"]

    [lines] = differences(recorded(), green)
    assert lines.startswith("NetworkSettings.Networks.llm-two: ")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("Id", "9" * 64),
        ("Name", "/other"),
        ("State/Pid", 1),
        ("Config/Image", "sha256:0"),
        ("Config/Hostname", "other"),
        ("Config/Labels/flettner.server", "chat-r3"),
        ("Config/Labels/com.docker.compose.project", "other"),
        ("HostConfig/RestartPolicy/Name", "no"),
        ("HostConfig/VolumesFrom", []),
        ("HostConfig/SecurityOpt", ["seccomp=unconfined", "no-new-privileges"]),
        ("NetworkSettings/Networks/llm-one/Aliases", []),
        ("NetworkSettings/Networks/llm-one/IPAMConfig", None),
        ("NetworkSettings/Networks/llm-one/IPAddress", "10.211.7.2"),
    ],
)
def test_does_not_report_fields_that_must_differ(path: str, value: object) -> None:
    assert differences(recorded(), changed(path, value)) == ()


def test_compares_secrets_without_showing_them() -> None:
    blue, green = recorded(), recorded()
    green["Config"]["Env"][0] = "HF_TOKEN=hf_other123456"
    green["Config"]["Cmd"][-1] = "othersekrit"
    lines = "\n".join(differences(blue, green))

    assert "Config.Env.HF_TOKEN: *** → ***" in lines
    assert "Config.Cmd: " in lines
    assert not [secret for secret in ("hf_", "sekrit") if secret in lines]


def test_a_clone_differs_in_the_requested_flags() -> None:
    blue = recorded()
    spec = Container.parse(blue)
    made = clone(spec, name="green", labels={}, setting={**spec.serve.setting, "max_num_seqs": 32})

    assert differences(blue, started(made.body, blue)) == ("Config.Cmd max_num_seqs: 16 → 32",)


# A real engine.

CONFIG: Json = {
    "Domainname": "example.org",
    "Hostname": "blue-host",
    "User": "0:0",
    "WorkingDir": "/tmp",  # noqa: S108
    "StopSignal": "SIGINT",
    "StopTimeout": 33,
    "Healthcheck": {"Test": ["CMD", "true"], "Interval": 5 * 10**9, "Timeout": 2 * 10**9, "Retries": 4},
    "ExposedPorts": {"8000/tcp": {}, "9000/udp": {}},
    "Volumes": {"/anon": {}},
}
HOST: Json = {
    "Mounts": [
        {"Type": "volume", "Target": "/anon2"},
        {"Type": "bind", "Source": "/etc", "Target": "/host-etc", "ReadOnly": True},
        {"Type": "tmpfs", "Target": "/scratch", "TmpfsOptions": {"SizeBytes": 4 << 20}},
    ],
    "Devices": [{"PathOnHost": "/dev/null", "PathInContainer": "/dev/x", "CgroupPermissions": "r"}],
    "DeviceCgroupRules": ["c 1:3 r"],
    "IpcMode": "shareable",
    "ShmSize": 64 << 20,
    "Ulimits": [{"Name": "nofile", "Soft": 2048, "Hard": 4096}],
    "Memory": 1 << 30,
    "MemorySwap": 1 << 30,
    "CpuShares": 512,
    "CpusetCpus": "0",
    "PidsLimit": 500,
    "CapAdd": ["SYS_PTRACE"],
    "CapDrop": ["MKNOD", "AUDIT_WRITE"],
    "SecurityOpt": ["no-new-privileges", "seccomp=unconfined"],
    "Sysctls": {"net.core.somaxconn": "512"},
    "ExtraHosts": ["a.example:10.0.0.1"],
    "Dns": ["127.0.0.1"],
    "DnsOptions": ["ndots:2"],
    "GroupAdd": ["44"],
    "OomScoreAdj": 100,
    "ReadonlyRootfs": True,
    "LogConfig": {"Type": "json-file", "Config": {"max-size": "5m", "max-file": "2"}},
    "Runtime": "runc",
}


async def test_clones_a_container_with_forty_options_except_its_flags() -> None:
    async with Bench() as bench:
        networks = [await bench.network("one"), await bench.network("two")]
        blue = await bench.serving(
            *("--max-num-seqs", "16", "--api-key", "sekrit"),
            networks=networks,
            restart="unless-stopped",
            env={"HF_TOKEN": "hf_abcdefgh12"},
            tmpfs={"/t": "size=8m"},
            labels={"team": "ml", "com.docker.compose.project": "p"},
            binds=[f"{await bench.volume('cache')}:/root/.cache"],
            config=CONFIG,
            host=HOST,
        )
        before = await bench.spec(blue)
        image = await bench.client.image(before.image)
        setting = {**before.serve.setting, "max_num_seqs": 32, "enable_prefix_caching": False}
        recorded = Container.parse(document_to_keep(before, image))
        spec = clone(recorded, name=f"{bench.prefix}green", labels={}, setting=setting)
        made = await bench.client.create(spec.body, spec.name)
        for network, endpoint in spec.networks:
            await bench.client.connect(network, made, endpoint)
        await bench.client.start(made)
        after = await bench.client.inspect(made)

    assert find_obstacles(before, image) == ()
    assert after is not None
    assert diff.differences(before, after) == (
        "Config.Cmd enable_prefix_caching: not given → false",
        "Config.Cmd max_num_seqs: 16 → 32",
    )
    assert {name for endpoint in after.networks.values() for name in endpoint.aliases} == {
        spec.name,
        made[:12],
    }
    [published] = after.document["NetworkSettings"]["Ports"]["8000/tcp"]
    assert published["HostIp"] == "127.0.0.1"


async def test_clones_a_host_network_container_to_another_port() -> None:
    async with Bench() as bench:
        blue = await bench.run(
            "--port",
            "28431",
            host={"NetworkMode": "host", "PortBindings": {}},
            config={"NetworkingConfig": {}},
        )
        before = await bench.spec(blue)
        spec = clone(before, name=f"{bench.prefix}green", labels={}, setting={}, port=28432)
        made = await bench.client.create(spec.body, spec.name)
        await bench.client.start(made)
        after = await bench.client.inspect(made)

    assert after is not None
    assert diff.differences(before, after) == ("Config.Cmd port: 28431 → 28432",)


async def test_clones_the_gpu_request() -> None:
    wanted = [{"Driver": "", "Count": 0, "DeviceIDs": ["0", "1"], "Capabilities": [["gpu"]], "Options": {}}]
    async with Bench() as bench:
        image = await bench.simulator()
        body = {
            "Image": image.tag,
            "Cmd": ["m"],
            "HostConfig": {"DeviceRequests": wanted},
            "Labels": {BENCH: bench.prefix},
        }
        blue = await bench.client.inspect(await bench.client.create(body, f"{bench.prefix}blue"))
        assert blue is not None
        spec = clone(blue, name=f"{bench.prefix}green", labels={}, setting={"seed": 1})
        green = await bench.client.inspect(await bench.client.create(spec.body, spec.name))

    assert green is not None
    assert green.document["HostConfig"]["DeviceRequests"] == wanted
    assert diff.differences(blue, green) == ("Config.Cmd seed: not given → 1",)
