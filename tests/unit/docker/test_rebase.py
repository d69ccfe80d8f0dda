"""A container on another image or other GPUs keeps what it was created with; the rest is the new image's."""

from flettner.actuators.docker.container import Container, Gpus, Json
from flettner.actuators.docker.upgrade import move, rebase, why_not_moved
from tests.support.docker_documents import container

OLD: Json = {
    "Entrypoint": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
    "Env": ["PATH=/usr/bin", "CUDA_VERSION=12.8", "VLLM_USE_V1=0", "OLD_ONLY=1"],
    "Labels": {"maintainer": "vllm", "version": "0.32"},
    "WorkingDir": "/old",
    "User": "",
    "ExposedPorts": {"8000/tcp": {}},
}
NEW: Json = {
    "Entrypoint": ["vllm", "serve"],
    "Env": ["PATH=/opt/bin", "CUDA_VERSION=13.0", "VLLM_USE_V1=0", "NEW_ONLY=1"],
    "Labels": {"maintainer": "vllm", "version": "0.33"},
    "WorkingDir": "/new",
    "StopSignal": "SIGINT",
}


def test_what_comes_from_the_image_follows_it() -> None:
    config = {**OLD, "Cmd": ["--model", "m"], "Image": "vllm:0.32", "Tty": True}

    rebased = rebase(config, OLD, NEW)

    assert rebased == {
        **NEW,
        "Cmd": ["--model", "m"],
        "Image": "vllm:0.32",
        "Tty": True,
        "ExposedPorts": {},
        "Volumes": {},
    }


def test_what_the_container_was_created_with_stays() -> None:
    config = {
        **OLD,
        "Entrypoint": ["/entry.sh"],
        "Env": ["PATH=/usr/bin", "CUDA_VERSION=12.8", "VLLM_USE_V1=1", "OLD_ONLY=1", "HF_HOME=/data"],
        "Labels": {**OLD["Labels"], "team": "ml"},
        "WorkingDir": "/data",
    }

    rebased = rebase(config, OLD, NEW)

    assert rebased["Entrypoint"] == ["/entry.sh"]
    assert rebased["Env"] == [
        "PATH=/opt/bin",
        "CUDA_VERSION=13.0",
        "NEW_ONLY=1",
        "VLLM_USE_V1=1",
        "HF_HOME=/data",
    ]
    assert rebased["Labels"] == {"maintainer": "vllm", "version": "0.33", "team": "ml"}
    assert rebased["WorkingDir"] == "/data"


def moved(host: Json, *env: str) -> Container:
    return Container.parse(move(container(host=host, config={"Env": list(env)}), ["5", "6"]))


def test_other_gpus_take_the_place_of_those_that_the_container_was_started_with() -> None:
    asked = {"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {"a": "b"}}
    fpga = {"Driver": "fpga", "Count": 1, "DeviceIDs": None, "Capabilities": [["fpga"]]}

    by_request = moved({"DeviceRequests": [asked, fpga]}, "CUDA_VISIBLE_DEVICES=0,1", "HF_HOME=/data")
    by_runtime = moved({"Runtime": "nvidia"}, "NVIDIA_VISIBLE_DEVICES=all")

    requests = by_request.document["HostConfig"]["DeviceRequests"]
    assert requests == [fpga, {**asked, "Count": 0, "DeviceIDs": ["5", "6"]}]
    assert by_request.document["Config"]["Env"] == ["HF_HOME=/data"]
    assert by_request.gpus == by_runtime.gpus == Gpus(ids=("5", "6"))
    assert not why_not_moved(by_request)


def test_gpus_of_cdi_are_named_as_before() -> None:
    asked = {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0"]}

    assert moved({"DeviceRequests": [asked]}).document["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == [
        "nvidia.com/gpu=5",
        "nvidia.com/gpu=6",
    ]


def test_a_container_with_device_files_stays_on_them() -> None:
    files = {"Devices": [{"PathOnHost": "/dev/nvidia0"}]}

    assert "start it with --gpus" in why_not_moved(Container.parse(container(host=files)))
