"""A container on another image keeps what it was created with, and has the rest from the new image."""

from flettner.actuators.docker.container import Json
from flettner.actuators.docker.upgrade import rebase

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
