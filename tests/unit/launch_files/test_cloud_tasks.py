"""Tasks of SkyPilot and services of dstack, on the GPUs that they ask for."""

import pytest

from flettner.vllm_facts.launch_files.recognise import read_launches
from tests.unit.launch_files.files import words

SKY = """\
envs:
  MODEL: org/model
resources:
  accelerators: {accelerators}
  image_id: docker:vllm/vllm-openai:v0.21.0
num_nodes: {nodes}
setup: pip install x
run: |
  vllm serve $MODEL --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE \\
    --pipeline-parallel-size $SKYPILOT_NUM_NODES
"""


@pytest.mark.parametrize(
    ("accelerators", "expected"),
    [
        ("H100:8", [("H100", 8)]),
        ("L4", [("L4", 1)]),
        ("{L40S: 4, H200: 2}", [("L40S", 4), ("H200", 2)]),
        ("{L40S:4, A100:1}", [("L40S", 4), ("A100-40GB", 1)]),
        ("['A100-80GB:2']", [("A100-80GB", 2)]),
    ],
)
def test_a_task_is_read_on_each_kind_of_gpu(accelerators: str, expected: list[tuple[str, int]]) -> None:
    launches = read_launches("task.yaml", SKY.format(accelerators=accelerators, nodes=1))
    assert [(launch.gpu, launch.gpus) for launch in launches] == expected
    assert [launch.alternative for launch in launches] == [False] + [True] * (len(expected) - 1)
    for launch, (_, count) in zip(launches, expected, strict=True):
        assert words(launch) == (
            f"vllm serve org/model --tensor-parallel-size {count} --pipeline-parallel-size 1"
        )
        assert launch.version == "0.21.0"


def test_a_task_over_several_hosts_knows_their_number() -> None:
    (launch,) = read_launches("task.yaml", SKY.format(accelerators="H100:8", nodes=2))
    assert launch.hosts == 2
    assert words(launch).endswith("--pipeline-parallel-size 2")


DSTACK = """\
type: service
name: chat
image: vllm/vllm-openai:v0.21.0
env:
  - MODEL=org/model
  - HF_TOKEN
commands:
  - export SEQS=9
  - vllm serve $MODEL --tensor-parallel-size $DSTACK_GPUS_NUM --max-num-seqs $SEQS
port: 8000
resources:
  gpu: {gpu}
"""


@pytest.mark.parametrize(
    ("gpu", "name", "count"),
    [
        ("H100:4", "H100", 4),
        ("80GB", "", 1),
        ("A100:80GB:2", "A100 80GB", 2),
        ("{name: L40S, count: 2}", "L40S", 2),
        ("H100:1..4", "H100", None),
    ],
)
def test_a_service_of_dstack_is_read_with_its_gpus(gpu: str, name: str, count: int | None) -> None:
    (launch,) = read_launches(".dstack.yml", DSTACK.format(gpu=gpu))
    assert (launch.gpu, launch.gpus, launch.version) == (name, count, "0.21.0")
    size = count or "$DSTACK_GPUS_NUM"
    assert words(launch) == f"vllm serve org/model --tensor-parallel-size {size} --max-num-seqs 9"


@pytest.mark.parametrize(
    ("options", "name", "count", "hosts"),
    [
        ("--gres=gpu:A6000:4", "A6000", 4, None),
        ("-G h100:2", "h100", 2, None),
        ("--gpus=rtx_4090:1", "rtx_4090", 1, None),
        ("--gpus-per-node=8\n#SBATCH --nodes=2", "", 8, 2),
        ("--gpus=16\n#SBATCH -N 2", "", 8, 2),
        ("--gres=gpu:A100:2\n#SBATCH --constraint=gpu80g", "A100 80GB", 2, None),
        ("--mem=4G\n##SBATCH --gres=gpu:V100:2", "", None, None),
    ],
)
def test_a_job_of_slurm_tells_its_gpus(options: str, name: str, count: int | None, hosts: int | None) -> None:
    (launch,) = read_launches("job.sh", f"#!/bin/bash\n#SBATCH {options}\nvllm serve org/model\n")
    assert (launch.gpu, launch.gpus, launch.hosts) == (name, count, hosts)


@pytest.mark.parametrize(
    "labels",
    [
        "nodeSelector: {nvidia.com/gpu.product: NVIDIA-H200}",
        (
            "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: "
            "[{matchExpressions: [{key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-H200]}]}]}}}"
        ),
    ],
)
def test_the_labels_of_nodes_tell_the_gpu(labels: str) -> None:
    text = f"kind: Pod\nspec:\n  {labels}\n  containers:\n  - command: [vllm, serve, org/model]\n"
    (launch,) = read_launches("pod.yaml", text)
    assert launch.gpu == "NVIDIA-H200"


def test_a_choice_of_labels_leaves_the_gpu_open() -> None:
    terms = "[{matchExpressions: [{key: nvidia.com/gpu.product, operator: In, values: [L4, H200]}]}]"
    affinity = f"{{nodeAffinity: {{required: {{nodeSelectorTerms: {terms}}}}}}}"
    text = f"kind: Pod\nspec:\n  affinity: {affinity}\n  containers:\n  - command: [vllm, serve, org/model]\n"
    (launch,) = read_launches("pod.yaml", text)
    assert launch.gpu == ""


@pytest.mark.parametrize("program", ["apptainer exec --nv -B /data:/data vllm.sif", "singularity exec x.sif"])
def test_a_container_of_apptainer_starts_the_words_behind_its_image(program: str) -> None:
    (launch,) = read_launches("job.sh", f"{program} vllm serve org/model --port 9000\n")
    assert words(launch).endswith("vllm serve org/model --port 9000")
