import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.agent.domain.reading import Gpu
from flettner.sensors.dcgm.page import METRICS, parse_page
from flettner.vllm_facts.errors import MetricsPageError
from flettner.vllm_facts.sizing.gpus import find_gpu
from tests.unit.sensors.dcgm_pages import H100, labels, page


def only(body: bytes) -> Gpu:
    (gpu,) = parse_page(body)
    return gpu.gpu


def test_a_gpu_is_read_as_nvidia_smi_reports_it() -> None:
    (gpu,) = parse_page(page((labels(3, pod="vllm-7d9f-x2x4z"), H100)))

    assert gpu.pods == {("chat", "vllm-7d9f-x2x4z")}
    assert gpu.gpu == Gpu(
        index=3,
        uuid="GPU-gpu-1-3",
        name="NVIDIA H100 80GB HBM3",
        utilization=0.97,
        memory_used_mib=74559.0,
        memory_total_mib=81559.0,
        power_w=627.4,
        temperature_c=52.0,
        throttle_reasons=4,
        mig=False,
    )


@pytest.mark.parametrize("metric", sorted(METRICS.keys() & H100.keys()))
def test_a_metric_that_the_exporter_leaves_out_is_none_not_zero(metric: str) -> None:
    left = {name: value for name, value in H100.items() if name != metric}
    missing = {
        "DCGM_FI_DEV_GPU_TEMP": {"temperature_c": None},
        "DCGM_FI_DEV_POWER_USAGE": {"power_w": None},
        "DCGM_FI_DEV_GPU_UTIL": {"utilization": 0.913},
        "DCGM_FI_DEV_FB_FREE": {"memory_total_mib": None},
        "DCGM_FI_DEV_FB_USED": {"memory_used_mib": None, "memory_total_mib": None},
        "DCGM_FI_DEV_FB_RESERVED": {"memory_used_mib": 74000.0, "memory_total_mib": 81000.0},
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": {},
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": {"throttle_reasons": None},
    }[metric]
    whole, less = only(page((labels(), H100))), only(page((labels(), left)))

    changed = {
        name: getattr(less, name) for name in Gpu.__slots__ if getattr(less, name) != getattr(whole, name)
    }
    assert changed == missing


def test_a_gpu_with_nothing_but_a_temperature_is_a_gpu() -> None:
    gpu = only(page((labels(), {"DCGM_FI_DEV_GPU_TEMP": 41})))

    assert gpu == Gpu(index=0, uuid="GPU-gpu-1-0", name="NVIDIA H100 80GB HBM3", temperature_c=41.0)


def test_a_total_that_the_exporter_reports_comes_before_the_sum() -> None:
    assert only(page((labels(), H100 | {"DCGM_FI_DEV_FB_TOTAL": 81600}))).memory_total_mib == 81600.0


@pytest.mark.parametrize(
    "value",
    [
        "NaN",
        "+Inf",
        "-1",
        "1e300",
        "2147483632",
        "2147483635",
        "9223372036854775794",
        "140737488355328.000000",
    ],
)
def test_an_impossible_or_blank_value_is_none(value: str) -> None:
    gpu = only(page((labels(), dict.fromkeys(H100, value))))

    assert gpu == Gpu(index=0, uuid="GPU-gpu-1-0", name="NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize(("value", "utilization"), [("0", 0.0), ("100", 1.0), ("101", None)])
def test_utilization_is_a_percentage(value: str, utilization: float | None) -> None:
    assert only(page((labels(), {"DCGM_FI_DEV_GPU_UTIL": value}))).utilization == utilization


def test_a_mask_that_is_no_whole_number_is_none() -> None:
    assert only(page((labels(), {"DCGM_FI_DEV_CLOCKS_EVENT_REASONS": "4.5"}))).throttle_reasons is None


def test_the_older_name_of_the_clock_events_is_read() -> None:
    gpu = only(page((labels(), {"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": "96"})))

    assert gpu.throttle_reasons == 0x20 | 0x40


def test_names_and_labels_of_the_exporter_before_version_2_are_read() -> None:
    inside = (
        'gpu="4",uuid="GPU-93",device="nvidia4",modelName="NVIDIA A100 80GB PCIe",'
        'container_name="vllm",pod_name="vllm-0",pod_namespace="ai-1"'
    )
    old = {
        "dcgm_gpu_utilization": 50,
        "dcgm_fb_used": 70000,
        "dcgm_fb_free": 11000,
        "dcgm_gpu_temp": 60,
        "dcgm_power_usage": "251.5",
    }
    (gpu,) = parse_page(page((inside, old)))

    assert gpu.pods == {("ai-1", "vllm-0")}
    assert gpu.gpu == Gpu(
        index=4,
        uuid="GPU-93",
        name="NVIDIA A100 80GB PCIe",
        utilization=0.5,
        memory_used_mib=70000.0,
        memory_total_mib=81000.0,
        power_w=251.5,
        temperature_c=60.0,
    )


def test_the_pod_of_a_page_that_passed_through_prometheus_is_the_workload() -> None:
    passed = labels(pod="dcgm-exporter-x", namespace="gpu-operator")
    passed += ',exported_namespace="chat",exported_pod="vllm-0"'
    (gpu,) = parse_page(page((passed, H100)))

    assert gpu.pods == {("chat", "vllm-0")}


def test_a_name_with_hyphens_is_a_known_gpu() -> None:
    gpu = only(page((labels(modelName="NVIDIA-H100-80GB-HBM3"), H100)))
    entry = find_gpu(gpu.name)

    assert entry is not None
    assert entry == find_gpu("NVIDIA H100 80GB HBM3")


def test_a_gpu_that_several_pods_share_is_one_gpu() -> None:
    (gpu,) = parse_page(page((labels(pod="vllm-0"), H100), (labels(pod="embed-0"), H100)))

    assert gpu.pods == {("chat", "vllm-0"), ("chat", "embed-0")}


def mig_instance(number: str, **values: object) -> tuple[str, dict[str, object]]:
    inside = labels(0, pod=f"vllm-{number}", GPU_I_PROFILE="3g.40gb", GPU_I_ID=number)
    return inside, {"DCGM_FI_DEV_GPU_UTIL": 0, "DCGM_FI_DEV_GPU_TEMP": 44, **values}


def test_mig_instances_have_memory_of_their_own_and_no_utilization_by_the_driver() -> None:
    gpus = parse_page(
        page(
            mig_instance("1", DCGM_FI_DEV_FB_USED=30000, DCGM_FI_DEV_FB_FREE=10192),
            mig_instance("2", DCGM_FI_PROF_GR_ENGINE_ACTIVE="0.5"),
        )
    )
    first, second = (assigned.gpu for assigned in gpus)

    assert (first.uuid, second.uuid) == ("GPU-gpu-1-0/1", "GPU-gpu-1-0/2")
    assert first.mig
    assert second.mig
    assert (first.utilization, second.utilization) == (None, 0.5)
    assert (first.memory_used_mib, first.memory_total_mib, second.memory_total_mib) == (
        30000.0,
        40192.0,
        None,
    )
    assert [assigned.pods for assigned in gpus] == [{("chat", "vllm-1")}, {("chat", "vllm-2")}]


def test_a_gpu_in_mig_mode_is_not_counted_beside_its_instances() -> None:
    gpus = parse_page(page((labels(0), H100), mig_instance("1"), (labels(1), H100)))

    assert [assigned.gpu.uuid for assigned in gpus] == ["GPU-gpu-1-0/1", "GPU-gpu-1-1"]


def test_rows_of_links_switches_and_processors_are_skipped() -> None:
    more = b"""\
# TYPE DCGM_FI_DEV_NVLINK_BANDWIDTH_L0 counter
DCGM_FI_DEV_NVLINK_BANDWIDTH_L0{nvlink="0",gpu="0",gpu_uuid="GPU-0a",model_name="NVIDIA H100"} 0
# TYPE DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT gauge
DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT{nvswitch="0",Hostname="gpu-1"} 45
# TYPE DCGM_FI_DEV_CPU_UTIL_TOTAL gauge
DCGM_FI_DEV_CPU_UTIL_TOTAL{cpu="0",Hostname="gpu-1"} 0.1
"""

    assert parse_page(page((labels(), H100)) + more) == parse_page(page((labels(), H100)))


GOOD = page((labels(), H100))
BAD = {
    "empty": (b"", "the page is empty: the exporter reads no GPU"),
    "blank": (b"\n\n", "the page is empty"),
    "html": (b"<html>not here</html>\n", "not a metrics page"),
    "binary": (b"\xff\x00\n", "not UTF-8"),
    "of another exporter": (
        b"# TYPE node_load1 gauge\nnode_load1 0.5\n",
        "no metric of NVIDIA's DCGM exporter",
    ),
    "cut": (GOOD[:-4], "is cut"),
    "without labels": (b"# TYPE a gauge\nDCGM_FI_DEV_GPU_TEMP 41\n", "no label `UUID`"),
    "without an index": (GOOD.replace(b'gpu="0",', b""), "the label `gpu` is ''"),
    "impossible index": (GOOD.replace(b'gpu="0"', b'gpu="256"'), "not a GPU's index below 256"),
    "foreign digits": (GOOD.replace(b'gpu="0"', 'gpu="\u0661"'.encode()), "not a GPU's index"),
    "of a cluster": (page(*[(labels(node=f"gpu-{n}"), H100) for n in range(257)]), "more than 256 GPUs"),
    "torn labels": (GOOD.replace(b'modelName="', b"modelName="), "cannot be read"),
    "no number": (GOOD.replace(b"} 52\n", b"} ERROR - FAILED TO CONVERT TO STRING\n"), "cannot be read"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_page_that_is_not_whole_is_refused_with_the_cause(kind: str) -> None:
    body, why = BAD[kind]

    with pytest.raises(MetricsPageError, match=why):
        parse_page(body)


VALUES = st.floats().map(str) | st.integers().map(str) | st.text(max_size=9)
CELLS = st.text(max_size=12) | st.sampled_from(["0", "1", "GPU-0a", "vllm-0", '"', "\\", "\n", "}"])
NAMES = st.sampled_from(["gpu", "UUID", "uuid", "GPU_I_ID", "pod", "namespace", "modelName"]) | st.text(
    max_size=5
)
ROWS = st.tuples(st.sampled_from(sorted(METRICS)), st.dictionaries(NAMES, CELLS), VALUES)


@given(st.lists(ROWS, max_size=5) | st.binary())
def test_any_page_is_gpus_with_valid_numbers_or_is_refused(
    rows: list[tuple[str, dict[str, str], str]] | bytes,
) -> None:
    if isinstance(rows, bytes):
        body = rows
    else:
        body = page(*[(",".join(f'{k}="{v}"' for k, v in cells.items()), {n: v}) for n, cells, v in rows])
    try:
        gpus = parse_page(body)
    except MetricsPageError:
        return

    assert gpus
    for gpu in (assigned.gpu for assigned in gpus):
        numbers = (gpu.memory_used_mib, gpu.memory_total_mib, gpu.power_w, gpu.temperature_c)
        assert all(number is None or 0 <= number <= 3e9 for number in numbers)
        assert gpu.utilization is None or 0 <= gpu.utilization <= 1
        assert gpu.throttle_reasons is None or 0 <= gpu.throttle_reasons <= 1e9
        assert 0 <= gpu.index < 256
        assert gpu.uuid
