"""Workers of NVIDIA Dynamo run vLLM's engine with its flags, and have no HTTP server of their own."""

import pytest

from flettner.vllm_facts.flag_parser import is_vllm_server, parse_setting
from flettner.vllm_facts.launch_files.recognise import read_launches
from flettner.vllm_facts.shell_command.docker_run import image_version
from flettner.vllm_facts.shell_command.serve_command import parse_command

GRAPH = """\
apiVersion: nvidia.com/v1beta1
kind: DynamoGraphDeployment
metadata: {name: chat}
spec:
  components:
    - name: Frontend
      podTemplate:
        spec:
          containers:
            - image: registry/dynamo:1.3.0-vllm0.24.1@sha256:0123
              command: [bash, -lc]
              args: ["exec python3 -m dynamo.frontend --http-port 8000"]
    - name: decode
      podTemplate:
        spec:
          containers:
            - image: registry/dynamo:1.3.0-vllm0.24.1@sha256:0123
              command: [bash, -lc]
              args:
                - |
                  set -e
                  ulimit -l unlimited
                  exec python3 -m dynamo.vllm \\
                    --model org/m --dyn-tool-call-parser hermes \\
                    --tensor-parallel-size 2
"""


def test_a_worker_of_a_graph_is_read_and_its_frontend_is_not() -> None:
    (launch,) = read_launches("graph.yaml", GRAPH)

    assert [word.text for word in launch.words][-3:] == ["hermes", "--tensor-parallel-size", "2"]
    assert (launch.problem, launch.version) == ("", "0.24.1")


SERVICES = """\
kind: DynamoGraphDeployment
spec:
  services:
    VllmDecodeWorker:
      resources: {limits: {gpu: "2"}}
      extraPodSpec:
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.7.0
          args: ["python3 -m dynamo.vllm --model org/m --max-num-seqs 8 2>&1 | tee /tmp/log"]
"""


def test_a_worker_in_one_word_is_what_the_operators_shell_starts() -> None:
    (launch,) = read_launches("graph.yaml", SERVICES)

    assert [word.text for word in launch.words][-2:] == ["--max-num-seqs", "8"]
    assert launch.entry_fault is None


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/sh\npython3 -m dynamo.vllm --model org/m --max-num-seqs 8\n",
        "#!/bin/sh\ndocker run -d registry/dynamo python3 -m dynamo.vllm --model org/m --max-num-seqs 8\n",
        "#!/bin/sh\nbash -c 'exec python -m dynamo.vllm --model org/m --max-num-seqs 8'\n",
    ],
)
def test_a_worker_is_read_in_scripts(text: str) -> None:
    (launch,) = read_launches("start.sh", text)

    assert launch.words[-1].text == "8"


def test_flags_of_dynamo_itself_are_no_setting_of_vllm() -> None:
    words = "python3 -m dynamo.vllm --model org/m --disaggregation-mode decode --is-prefill-worker -tp 2"

    assert parse_setting(words.split()) == {"model": "org/m", "tensor_parallel_size": 2}


def test_a_worker_is_no_server_and_listens_on_no_port() -> None:
    command = parse_command(["python3", "-m", "dynamo.vllm", "--model", "org/m"])

    assert command.port is None
    assert not is_vllm_server(command.argv)


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.9.0", ""),  # a release of Dynamo
        ("vllm/vllm-openai:v0.24.1@sha256:0123", "0.24.1"),
        ("vllm/vllm-openai@sha256:0123", ""),
        ("rayproject/ray-llm:2.54.1-py312-cu128", "0.15.0"),
        ("rayproject/ray-llm:2.99.0", ""),
    ],
)
def test_the_release_is_in_the_tag_of_an_image_with_its_digest(image: str, version: str) -> None:
    assert image_version(image) == version


GROUP = """\
kind: LeaderWorkerSet
spec:
  leaderWorkerTemplate:
    size: 3
    workerTemplate:
      spec:
        containers:
          - image: vllm/vllm-openai:v0.27.0
            command: [bash, -c]
            args:
              - |
                R=$((${LWS_WORKER_INDEX:-0} * LOCAL))
                exec vllm serve org/m -dp $((LWS_GROUP_SIZE * ${LOCAL})) -dpr $((R * 1)) -tp $((A * 2))
            env: [{name: LOCAL, value: "8"}]
"""


def test_products_of_known_variables_are_computed() -> None:
    (launch,) = read_launches("group.yaml", GROUP)

    assert [word.text for word in launch.words][3:] == [
        *("org/m", "-dp", "24", "-dpr", "$((R * 1))", "-tp", "$((A * 2))")
    ]
