"""Containers whose files do not fit the server in them."""

import pytest

from flettner.lint.rules import unknown_error
from flettner.lint.rules.container import LINTS
from flettner.vllm_facts.launch_files.recognise import read_launches
from flettner.vllm_facts.serve_config import Container, HealthCheck, Mount
from flettner.vllm_facts.shell_command.serve_command import parse_command
from flettner.vllm_facts.sizing.effective_flags import runs_on_cpus
from tests.support.lint_cases import L40S, case, findings

IMAGE = "vllm/vllm-openai:v0.32.0"
FULL = "a pod takes 8 GPUs"
POD = HealthCheck(name="livenessProbe", port=8000)
INSIDE = HealthCheck(name="healthcheck", port=8000, inside=True)


def pod(**facts: object) -> Container:
    return Container(launcher="Kubernetes", image=IMAGE, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flags", "port", "check", "log", "deaf"),
    [
        ("", 8000, POD, (), ""),
        ("", 8001, POD, (), "asks port 8000"),
        ("--host 127.0.0.1", 8000, POD, (), "listens on 127.0.0.1 alone"),
        ("--host 10.4.0.2", 8000, POD, (), ""),
        ("--host 10.4.0.2", 8000, INSIDE, (), "the container's loopback address"),
        ("--host 0.0.0.0", 8000, INSIDE, (), ""),
        ("--host ::", 8000, INSIDE, (), ""),
        ("--host 127.0.0.1", 8000, INSIDE, (), ""),
        ("--host gateway.internal", 8000, INSIDE, (), ""),  # a name may be one of both
        ("", None, POD, (), ""),  # a variable gives the port
        ("--headless", 8001, POD, (), ""),
        ("", 8001, POD, ('INFO: 10.2.0.9:5 - "GET /health HTTP/1.1" 200 OK',), ""),
    ],
)
def test_a_health_check_asks_where_the_server_listens(
    flags: str, port: int | None, check: HealthCheck, log: tuple[str, ...], deaf: str
) -> None:
    config = case(f"vllm serve m {flags}", port=port, container=pod(checks=(check,)), log=log)

    found = findings(LINTS, config)

    assert [finding.rule for finding in found] == (["U5"] if deaf else [])
    assert all(deaf in finding.why for finding in found)


PATCHED = ("/opt/vllm/model_executor/models/own.py",)


@pytest.mark.parametrize(
    ("image", "overlays", "log", "severities"),
    [
        ("vllm/vllm-openai:v0.31.0", PATCHED, (), ["info"]),
        ("vllm/vllm-openai:nightly-x86_64", PATCHED, (), ["warning"]),
        ("vllm/vllm-openai", PATCHED, (), ["warning"]),
        ("vllm/vllm-openai:v0.31.0", (), (), []),
        ("vllm/vllm-openai", PATCHED, ("INFO: Application startup complete.",), []),
    ],
)
def test_a_mount_over_files_of_vllm_is_named_until_the_server_answers(
    image: str, overlays: tuple[str, ...], log: tuple[str, ...], severities: list[str]
) -> None:
    container = Container(launcher="compose", image=image, overlays=overlays)

    found = findings(LINTS, case("vllm serve m", container=container, log=log))

    assert [(finding.rule, finding.severity) for finding in found] == [("U5", each) for each in severities]


@pytest.mark.parametrize(
    ("flags", "port", "asked", "log", "found"),
    [
        ("", 8000, (8000, 9000), (), ""),
        ("", 8000, (9000,), (), "leads requests to port 9000"),
        ("", 8000, (), (), ""),
        ("", None, (9000,), (), ""),
        ("--uds /tmp/s", 8000, (9000,), (), ""),
        ("", 8000, (9000,), ('INFO: 10.2.0.9:5 - "GET /health HTTP/1.1" 200 OK',), ""),
    ],
)
def test_requests_are_led_where_the_server_listens(
    flags: str, port: int | None, asked: tuple[int, ...], log: tuple[str, ...], found: str
) -> None:
    container = pod(asked_ports=asked, asked_by="the Service a")
    told = findings(LINTS, case(f"vllm serve m {flags}", port=port, container=container, log=log))

    assert [finding.severity for finding in told] == (["warning"] if found else [])
    assert all(found in finding.why for finding in told)


@pytest.mark.parametrize(
    ("container", "log", "severity"),
    [
        (pod(surges=True, asks_gpus=True, crowded=FULL), (), "info"),
        (
            pod(surges=True, asks_gpus=True, crowded=FULL),
            ("0/3 nodes: 3 Insufficient nvidia.com/gpu.",),
            None,
        ),
        (pod(surges=True, asks_gpus=True), (), None),  # another host may take it
        (pod(surges=True, crowded=FULL), (), None),
        (pod(asks_gpus=True, crowded=FULL), (), None),
    ],
)
def test_an_update_that_needs_a_second_set_of_gpus_is_told(
    container: Container, log: tuple[str, ...], severity: str | None
) -> None:
    found = findings(LINTS, case("vllm serve m", container=container, log=log))

    assert [finding.severity for finding in found] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("flags", "env", "gib", "needed"),
    [
        ("-tp 4 --kv-offloading-size 100", "", 64.0, "187 GB"),
        ("-tp 4 --kv-offloading-size 100", "", 128.0, ""),
        ("-tp 2 --cpu-offload-gb 40", "", 64.0, "126 GB"),
        (
            '-tp 2 --kv-transfer-config \'{"kv_connector": "AIBrixOffloadingConnectorV1Type1"}\'',
            "AIBRIX_KV_CACHE_OL_L1_CACHE_CAPACITY_GB=50",
            90.0,
            "140 GB",
        ),
        ("-tp 2", "AIBRIX_KV_CACHE_OL_L1_CACHE_CAPACITY_GB=50", 90.0, ""),  # nobody uses it
        (
            '-tp 2 --kv-transfer-config \'{"kv_connector": "LMCacheConnectorV1"}\'',
            "LMCACHE_MAX_LOCAL_CPU_SIZE=60",
            100.0,
            "160 GB",
        ),
    ],
)
def test_a_memory_limit_holds_what_the_server_keeps_in_it(
    flags: str, env: str, gib: float, needed: str
) -> None:
    found = findings(LINTS, case(f"vllm serve m {flags}", env=env, container=pod(memory_gib=gib)))

    assert [finding.severity for finding in found] == (["error"] if needed else [])
    assert all(needed in finding.expects for finding in found)


HUB = Mount(path="/root/.cache/huggingface")
DOWNLOADED = "INFO Time spent downloading weights for org/m: 301.482113 seconds"
COMPILED = "INFO torch.compile took 96.31 s in total"


@pytest.mark.parametrize(
    ("command", "env", "mounts", "log", "severity"),
    [
        ("vllm serve org/m", "", (), (), "info"),
        ("vllm serve org/m", "", (), (DOWNLOADED,), "warning"),
        ("vllm serve org/m", "", (HUB,), (DOWNLOADED,), None),
        ("vllm serve org/m", "", (Mount(path="/root"),), (), None),
        ("vllm serve org/m", "", (Mount(path="/root/.cache/huggingface/hub/"),), (), None),
        ("vllm serve org/m", "", (Mount(path="/root/.cache/huggingface", lasting=False),), (), "info"),
        ("vllm serve org/m", "HF_HOME=/data", (HUB,), (), "info"),
        ("vllm serve org/m", "HF_HOME=/data", (Mount(path="/data"),), (), None),
        ("vllm serve org/m --download-dir /w", "", (Mount(path="/w"),), (), None),
        ("vllm serve /models/m", "", (), (), None),
        ("vllm serve org/m", "", None, (), None),
        ("vllm serve /models/m", "", (), (COMPILED,), "warning"),
        ("vllm serve /models/m", "VLLM_CACHE_ROOT=/c", (Mount(path="/c"),), (COMPILED,), None),
        (
            "vllm serve /models/m",
            "",
            (Mount(path="/root/.cache/vllm/torch_compile_cache"),),
            (COMPILED,),
            None,
        ),
        ("vllm serve /models/m", "", (), (COMPILED.replace("96", "6"),), None),
    ],
)
def test_what_the_next_container_needs_is_in_a_volume(
    command: str, env: str, mounts: tuple[Mount, ...] | None, log: tuple[str, ...], severity: str | None
) -> None:
    found = findings(LINTS, case(command, env=env, container=pod(mounts=mounts), log=log))

    assert [finding.severity for finding in found] == ([severity] if severity else [])


def test_another_image_keeps_its_caches_in_a_place_that_is_not_known() -> None:
    other = Container(launcher="compose", image="org/server:1", mounts=(Mount(path="/cache"),))
    bare = Container(launcher="compose", image="org/server:1", mounts=())

    assert not findings(LINTS, case("vllm serve org/m", container=other, log=(COMPILED, DOWNLOADED)))
    (found,) = findings(LINTS, case("vllm serve org/m", container=bare, log=(DOWNLOADED,)))
    assert "HF_HOME" in found.expects


@pytest.mark.parametrize(("env", "rules"), [("", ["V1"]), ("VLLM_PORT=5000", [])])
def test_a_service_named_vllm_sets_a_variable_that_vllm_reads(env: str, rules: list[str]) -> None:
    found = findings(LINTS, case("vllm serve m", env=env, container=pod(port_variable=True)))

    assert [finding.rule for finding in found] == rules


def test_a_number_of_hosts_that_is_none_is_not_counted_with() -> None:
    config = case("vllm serve m --nnodes 0.5 --kv-offloading-size 64", container=pod(memory_gib=32.0))

    assert [finding.rule for finding in findings(LINTS, config)] == ["U5"]


@pytest.mark.parametrize(
    ("image", "cpus"),
    [("ours/vllm-server-cpu:3", True), ("quay.io/x/vllm-cpu-env:v0.9.1", True), (IMAGE, False)],
)
def test_an_image_for_cpus_tells_that_the_named_gpu_is_another_containers(image: str, cpus: bool) -> None:
    config = case("vllm serve m", card=L40S, container=Container(launcher="compose", image=image))

    assert runs_on_cpus(config) is cpus


@pytest.mark.parametrize(
    ("words", "file", "blamed"),
    [
        (
            "-v ~/fix/qwen3.py:PACKAGE/model_executor/models/qwen3.py:ro",
            "model_executor/models/qwen3.py",
            True,
        ),
        ("--mount type=bind,source=/v,target=PACKAGE/v1", "v1/worker/gpu_worker.py", True),
        (
            "-v /v/qwen3.py:PACKAGE/model_executor/models/qwen3.py",
            "model_executor/models/qwen3_moe.py",
            False,
        ),
        ("-v /data/qwen3.py:/models/qwen3.py", "model_executor/models/qwen3.py", False),
    ],
)
def test_a_file_mounted_over_one_of_vllm_is_blamed_for_its_traceback(
    words: str, file: str, *, blamed: bool
) -> None:
    package = "/opt/venv/lib/python3.12/site-packages/vllm"
    command = parse_command(f"docker run {words} {IMAGE} m".replace("PACKAGE", package).split())
    log = (
        f'  File "{package}/{file}", line 7, in __init__',
        "TypeError: f() missing 1 required argument: 'x'",
    )

    (found,) = findings(unknown_error.LINTS, case("vllm serve m", log=log, container=command.container))

    assert ("over vLLM's own" in found.why) is blamed
    assert ("without that mount" in found.expects) is blamed


@pytest.mark.parametrize(
    ("gpus", "why"), [("0.25", "for which the chart asks for no GPU"), ("1.5", "refuses the pod"), ("2", "")]
)
def test_a_part_of_a_gpu_is_none(gpus: str, why: str) -> None:
    text = f"servingEngineSpec: {{modelSpec: [{{modelURL: m, requestGPU: {gpus}, replicaCount: 3}}]}}"
    shared = text.replace("replicaCount: 3", "requestGPUMem: 9000")

    (launch,) = read_launches("values.yaml", text)
    (apart,) = read_launches("values.yaml", shared)

    assert [each.why for each in findings(LINTS, case("vllm serve m", container=launch.container))] == (
        [launch.container.gpu_fault] if launch.container else []
    )
    assert why in (launch.container.gpu_fault if launch.container else "")
    assert bool(launch.container) is bool(why)
    assert apart.container is None
