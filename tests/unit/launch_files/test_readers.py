"""Each kind of file gives the servers that it starts, and says what cannot be read."""

from dataclasses import replace

import pytest

from flettner.tools.advisor.render import format_command
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.launch import Launch
from flettner.vllm_facts.launch_files.recognise import read_launches
from flettner.vllm_facts.serve_config import Container, Granted, HealthCheck, Mount
from flettner.vllm_facts.shell_command.serve_command import parse_command
from tests.unit.launch_files.files import (
    COMPOSE,
    DEPLOYMENT,
    FILES,
    FLAGS,
    LEADER_WORKER_SET,
    SCRIPT,
    UNIT,
    VALUES,
    words,
)


def env(launch: Launch) -> dict[str, str]:
    return {name: variable.value for name, variable in launch.env.items()}


def test_compose_gives_each_service_that_starts_vllm() -> None:
    chat, embed = read_launches("compose.yaml", COMPOSE)

    assert words(chat) == "vllm serve --model=Qwen/Qwen3-8B --swap-space 4 --max-num-seqs 64"
    assert (chat.name, chat.version, chat.gpus) == ("chat", "0.32.0", 2)
    assert env(chat)["VLLM_USE_V1"] == "1"
    assert words(embed) == "vllm serve --model BAAI/bge-m3 --swap-space 4 --max-num-seqs 64"
    assert (embed.name, embed.version, env(embed)) == ("embed", "", {"CUDA_VISIBLE_DEVICES": "1"})
    assert embed.remarks == ("line 28: the variables of `env_file` are not read",)


@pytest.mark.parametrize(
    "service",
    [
        pytest.param("{image: a, command: vllm serve m --x 1}", id="a string"),
        pytest.param('{image: a, command: ["vllm", "serve", "m", "--x", "1"]}', id="a list"),
        pytest.param("{image: a, entrypoint: vllm serve, command: m --x 1}", id="an entrypoint"),
        pytest.param(
            "{image: vllm/vllm-openai, entrypoint: [], command: vllm serve m --x 1}", id="no entrypoint"
        ),
        pytest.param(
            "{image: vllm/vllm-openai, entrypoint: '', command: sh -c 'vllm serve m --x 1'}",
            id="an empty entrypoint",
        ),
        pytest.param(
            "{image: vllm/vllm-openai, entrypoint: , command: m --x 1}", id="the image's entrypoint"
        ),
        pytest.param("{image: vllm/vllm-openai, command: m --x 1}", id="vLLM's image"),
        pytest.param('{image: a, entrypoint: [sh, -c], command: ["vllm serve m --x 1"]}', id="a shell"),
        pytest.param("{image: a, command: bash -c 'cd /x && exec vllm serve m --x 1'}", id="a quoted script"),
        pytest.param(
            "{image: a, command: bash -c -i 'vllm serve m --x 1'}", id="an option before the script"
        ),
    ],
)
def test_compose_service_starts_vllm_in_several_ways(service: str) -> None:
    (launch,) = read_launches("compose.yaml", f"services:\n  a: {service}\n")

    assert words(launch).removeprefix("exec ") == "vllm serve m --x 1"
    assert launch.entry_fault is None


@pytest.mark.parametrize(
    ("limits", "locks"),
    [("{memlock: -1}", True), ("{memlock: {soft: -1, hard: -1}}", True), ("{nofile: 9}", False)],
)
def test_a_service_that_may_lock_all_memory_is_known(limits: str, locks: bool) -> None:
    text = f"services:\n  a: {{image: b, command: vllm serve m --x 1, ulimits: {limits}}}\n"
    (launch,) = read_launches("compose.yaml", text)

    assert launch.locks_memory is locks


@pytest.mark.parametrize(
    ("service", "bypassed"),
    [
        pytest.param("{image: b, entrypoint: vllm serve, command: m --x 1}", "b", id="another entrypoint"),
        pytest.param("{image: b, command: vllm serve m --x 1}", "", id="arguments alone"),
    ],
)
def test_an_image_whose_entrypoint_is_replaced_is_named(service: str, bypassed: str) -> None:
    (launch,) = read_launches("compose.yaml", f"services:\n  a: {service}\n")

    assert launch.bypassed_image == bypassed


def test_deployment_gives_the_container_with_its_gpus() -> None:
    (launch,) = read_launches("deployment.yaml", DEPLOYMENT)

    expected = "vllm serve mistralai/Mistral-7B-Instruct-v0.3 --swap-space 4 --enable-prefix-caching"
    assert words(launch) == expected
    assert (launch.name, launch.version, launch.gpus) == ("Deployment/mistral: server", "0.32.0", 1)
    assert env(launch) == {"MODE": "fast"}


def test_leader_worker_set_gives_the_command_of_its_script_with_the_variables_of_the_pod() -> None:
    (launch,) = read_launches("lws.yaml", LEADER_WORKER_SET)

    assert "--model org/model --swap-space 4 --tensor-parallel-size 8" in words(launch)
    assert launch.gpus == 8


def test_group_of_hosts_is_known_by_its_size_and_its_cluster() -> None:
    sized = LEADER_WORKER_SET.replace("  leaderWorkerTemplate:\n", "  leaderWorkerTemplate:\n    size: 2\n")
    (launch,) = read_launches("lws.yaml", sized)

    assert (launch.gpus, launch.hosts, launch.ray) == (8, 2, True)


@pytest.mark.parametrize(
    "script",
    [
        "ray start --address=$(LWS_LEADER_ADDRESS):6379 --block",
        "bash /vllm/multi-node-serving.sh worker --x=1",
    ],
)
def test_a_worker_that_only_joins_is_no_server(script: str) -> None:
    container = f"{{image: 'vllm/vllm-openai:v0.32.0', command: [sh, -c, '{script}']}}"
    text = f"kind: Pod\nspec:\n  containers:\n  - {container}\n"

    assert read_launches("pod.yaml", text) == []


def test_kserves_runtime_for_hugging_face_starts_vllm_with_the_flags_that_are_not_its_own() -> None:
    model = "{modelFormat: {name: huggingface}, args: [--model_name=llama, %s, --max-model-len, '8192']}"
    text = f"kind: InferenceService\nmetadata: {{name: llama}}\nspec: {{predictor: {{model: {model}}}}}\n"

    (launch,) = read_launches("isvc.yaml", text % "--model_id=meta-llama/Llama-3.1-8B-Instruct")
    (other,) = read_launches("isvc.yaml", text % "--backend=huggingface")

    assert words(launch) == "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192"
    assert launch.unread
    assert "serves without vLLM" in other.problem


def test_an_inference_service_over_several_hosts_has_the_sizes_of_its_workers() -> None:
    text = """\
kind: InferenceService
metadata: {name: llama}
spec:
  predictor:
    model:
      modelFormat: {name: huggingface}
      args: [--model_id=meta-llama/Llama-3.1-405B-Instruct]
    workerSpec: {pipelineParallelSize: 2, tensorParallelSize: 8}
"""

    (launch,) = read_launches("isvc.yaml", text)

    assert words(launch).endswith("--tensor-parallel-size 8 --pipeline-parallel-size 2")
    assert (launch.hosts, launch.ray) == (2, True)


def test_a_service_that_is_built_is_read_by_its_flags() -> None:
    text = "services:\n  llm:\n    build: {context: .}\n    command: --model org/m --max-model-len 2048\n"
    other = text.replace("--max-model-len", "--routing-logic")

    assert [words(launch) for launch in read_launches("compose.yaml", text)] == [
        "vllm serve --model org/m --max-model-len 2048"
    ]
    assert read_launches("compose.yaml", other) == []
    assert read_launches("compose.yaml", text.replace(" --max-model-len 2048", "")) == []


def test_a_container_whose_image_is_a_build_of_vllm_is_read_by_its_flags() -> None:
    """KServe's ServingRuntimes name an image and its flags, and no command."""
    text = """\
kind: ServingRuntime
metadata: {name: r}
spec: {containers: [{image: "quay.io/x/tgis-vllm:2", args: [--model=/mnt/models/, --max-model-len=2048]}]}
"""
    router = text.replace("--max-model-len=2048", "--routing-logic=session")
    model = text.replace("--model=/mnt/models/", "/mnt/models/x, --max-num-seqs=8")

    assert [words(launch) for launch in read_launches("r.yaml", text)] == [
        "vllm serve --model=/mnt/models/ --max-model-len=2048"
    ]
    assert read_launches("r.yaml", router) == []
    assert words(read_launches("r.yaml", model)[0]).startswith("vllm serve /mnt/models/x --max-num-seqs=8")


def test_a_ray_service_holds_the_configuration_of_its_models_as_text() -> None:
    text = """\
kind: RayService
metadata: {name: llm}
spec:
  serveConfigV2: |
    applications:
      - args:
          llm_configs:
            - model_loading_config: {model_id: q, model_source: Qwen/Qwen3-8B}
              engine_kwargs: {max_model_len: 8192}
"""

    (launch,) = read_launches("ray.yaml", text)

    assert words(launch) == "vllm serve Qwen/Qwen3-8B --max-model-len 8192"
    assert all(word.form == "none" for word in launch.words)  # no place in this file: nothing is written


def test_values_of_the_production_stack_become_the_command_of_its_chart() -> None:
    (launch,) = read_launches("values.yaml", VALUES)

    assert words(launch) == (
        "vllm serve meta-llama/Llama-3.1-8B-Instruct --enable-prefix-caching --max-model-len 4096 "
        "--dtype bfloat16 --enforce-eager --max-num-seqs 64"
    )
    assert (launch.name, launch.version, launch.gpus) == ("llama3", "0.32.0", 1)


def test_values_with_lmcache_become_a_command_with_its_connector() -> None:
    cache = "      lmcacheConfig: {enabled: true, kvRole: kv_producer}\n"

    (launch,) = read_launches("values.yaml", VALUES + cache)

    assert launch.words[-1].text == '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_producer"}'
    assert launch.unread


def test_values_of_a_model_that_is_not_deployed_start_no_server() -> None:
    assert read_launches("values.yaml", f"{VALUES}      enabled: false\n") == []


def test_unit_gives_its_command_over_continued_lines() -> None:
    (launch,) = read_launches("vllm.service", UNIT)

    assert words(launch) == "/opt/venv/bin/vllm serve org/model --swap-space 4 --max-num-seqs 64"
    assert env(launch) == {"MODEL": "org/model", "VLLM_USE_V1": "1"}
    assert launch.remarks == ("line 6: the variables in /etc/vllm.env are not read",)


def test_script_gives_the_command_with_its_literal_variables_and_arrays() -> None:
    (launch,) = read_launches("run.sh", SCRIPT)

    assert words(launch) == (
        "CUDA_VISIBLE_DEVICES=0,1 vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 "
        "--max-num-seqs $SEQS --swap-space 4 --port $PORT"
    )
    assert env(launch) == {"HF_HOME": "/srv/hf", "VLLM_USE_V1": "1"}


def test_flags_that_depend_on_a_condition_are_unread() -> None:
    (launch,) = read_launches("run.sh", SCRIPT)

    assert launch.unread == ("line 17: the flags in $EXTRA are unknown",)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("M=a\nM=b\nvllm serve $M --x 1", id="set twice"),
        pytest.param("if x; then M=a; fi\nvllm serve $M --x 1", id="set under a condition"),
        pytest.param("M=$(cat model)\nvllm serve $M --x 1", id="computed"),
        pytest.param("for M in a b; do vllm serve $M --x 1; done", id="a loop"),
    ],
)
def test_variable_with_more_than_one_value_stays_a_variable(script: str) -> None:
    (launch,) = read_launches("run.sh", script)

    assert words(launch) == "vllm serve $M --x 1"


@pytest.mark.parametrize(
    "script",
    [
        pytest.param('CMD="vllm serve m --x 1"\n$CMD', id="a text"),
        pytest.param('CMD="vllm serve m --x 1"\neval "$CMD"', id="eval"),
        pytest.param("eval \"vllm serve 'm' \\\n  --x 1\"", id="eval of its text"),
        pytest.param("X=1\neval vllm serve m '--x $X'", id="eval of several words"),
        pytest.param('CMD=(vllm serve m --x 1)\nexec "${CMD[@]}"', id="an array"),
    ],
)
def test_command_in_a_variable_is_read(script: str) -> None:
    (launch,) = read_launches("run.sh", script)

    assert words(launch).removeprefix("exec ") == "vllm serve m --x 1"


def test_evaluated_text_tells_the_line_of_what_is_unknown() -> None:
    (launch,) = read_launches("run.sh", 'set -e\n\neval "vllm serve m --x 1 $MORE"\n')

    assert (words(launch), launch.unread) == (
        "vllm serve m --x 1",
        ("line 3: the flags in $MORE are unknown",),
    )


def test_command_that_is_put_together_in_steps_is_a_problem() -> None:
    (launch,) = read_launches("run.sh", 'CMD="vllm serve m"\nCMD="$CMD --x 1"\nexec $CMD\n')

    assert "$CMD is put together" in launch.problem


def test_default_of_a_variable_is_read_and_remarked() -> None:
    script = "M=${1:-org/model}\nvllm serve $M --port ${PORT:-8000}\n"
    compose = (
        "services: {a: {image: 'vllm/vllm-openai:${TAG:-v0.32.0}', command: ['${M:-m}', '--x', '${X}']}}"
    )

    (in_script,), (in_compose,) = read_launches("run.sh", script), read_launches("compose.yaml", compose)

    assert words(in_script) == "vllm serve org/model --port 8000"
    assert in_script.remarks == (
        "line 2: ${PORT:-8000} is read as its default",
        "line 1: ${1:-org/model} is read as its default",
    )
    assert (words(in_compose), in_compose.version) == ("vllm serve m --x ${X}", "0.32.0")
    assert len(in_compose.remarks) == 2


def test_variable_in_the_place_of_flags_is_unread_in_a_container() -> None:
    (launch,) = read_launches(
        "compose.yaml", "services: {a: {image: b, command: 'vllm serve m --x 1 $EXTRA'}}"
    )

    assert (words(launch), launch.unread) == (
        "vllm serve m --x 1",
        ("line 1: the flags in $EXTRA are unknown",),
    )


def test_flag_after_a_comment_is_not_one_of_the_command() -> None:
    (launch,) = read_launches("run.sh", "vllm serve m \\\n  # --x 1 \\\n  --y 2\n")

    assert words(launch) == "vllm serve m"
    assert launch.entry_fault is not None
    assert "line 3: --y is not a flag of the server" in launch.entry_fault.why


def test_docker_run_is_read_in_scripts_and_units() -> None:
    command = "/usr/bin/docker run --gpus all vllm/vllm-openai:v0.32.0 --model m"

    (in_script,), (in_unit,) = (
        read_launches("run.sh", f"docker pull vllm/vllm-openai\n{command}\n"),
        read_launches("a.service", f"[Service]\nExecStart={command}\n"),
    )

    assert words(in_script) == words(in_unit) == command


@pytest.mark.parametrize(
    ("image", "flags", "starts"),
    [
        ("registry.example/me/vllm:v0.8.1", "--model org/model --dtype half", True),
        ("my-vllm-xpu", "org/model --max-model-len 4096 --port=8000", True),
        ("registry.example/me/vllm:v0.8.1", "--model org/model --not-of-vllm 1", False),
        ("registry.example/me/other:v0.8.1", "--model org/model --dtype half", False),
        ("my-vllm-xpu", "sleep 9", False),
    ],
)
def test_docker_run_of_ones_own_build_is_read_by_its_flags(image: str, flags: str, starts: bool) -> None:
    command = f"docker run --name vllm-a --gpus all {image} {flags}"

    launches = read_launches("run.sh", f"{command}\n")

    assert [words(launch) for launch in launches] == [command] * starts


def test_list_of_flags_is_read_for_vllm_serve() -> None:
    (launch,) = read_launches("flags.txt", FLAGS)

    assert words(launch) == "vllm serve --model org/model --swap-space 4 --max-num-seqs 64"


@pytest.mark.parametrize("name", FILES)
def test_kind_is_recognised_without_the_name(name: str) -> None:
    assert read_launches("<stdin>", FILES[name]) == read_launches(name, FILES[name])


@pytest.mark.parametrize("name", FILES)
def test_place_of_each_word_holds_the_word(name: str) -> None:
    text = FILES[name]
    for launch in read_launches(name, text):
        for word in launch.words:
            written = text[word.start : word.end]
            assert word.form == "none" or word.text in written or "$" in written


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        pytest.param("a.yaml", "a: [", "line", id="YAML"),
        pytest.param("a.yaml", "{{- if .Values.x }}\na: {{ b }}\n", "Helm template", id="a Helm template"),
        pytest.param("a.sh", "vllm serve 'm\n", "' is not closed", id="a quote"),
        pytest.param("a.sh", "x=$(vllm serve m\n", "is not closed", id="a substitution"),
    ],
)
def test_file_that_cannot_be_read_is_an_error_with_its_reason(name: str, text: str, expected: str) -> None:
    with pytest.raises(FlagError, match=expected):
        read_launches(name, text)


@pytest.mark.parametrize(
    "text", ["", "services: {web: {image: nginx}}", "#!/bin/sh\nls\n", "- a\n", "a: &a [*a]"]
)
def test_file_without_vllm_has_no_servers(text: str) -> None:
    assert read_launches("a.yaml" if ":" in text or text.startswith("- ") else "a.sh", text) == []


SERVICE = """\
services:
  chat:
    image: vllm/vllm-openai:v0.20.0
    command: --model org/model -tp 2
"""
POD = """\
kind: Deployment
spec:
  template:
    spec:
      containers:
      - image: vllm/vllm-openai:v0.20.0
        args: [--model, org/model, -tp, "2"]
"""


@pytest.mark.parametrize(
    ("name", "text", "little"),
    [
        pytest.param("compose.yaml", SERVICE, "compose", id="Docker's own"),
        pytest.param("compose.yaml", f"{SERVICE}    ipc: host\n", None, id="that of the host"),
        pytest.param("compose.yaml", f"{SERVICE}    shm_size: 16gb\n", None, id="a larger one"),
        pytest.param("compose.yaml", f"{SERVICE}    volumes: ['/dev/shm:/dev/shm']\n", None, id="mounted"),
        pytest.param("compose.yaml", f"{SERVICE}    tmpfs: /dev/shm\n", None, id="tmpfs"),
        pytest.param("pod.yaml", POD, "Kubernetes", id="of a pod"),
        pytest.param("pod.yaml", f"{POD}      hostIPC: true\n", None, id="of the pod's host"),
        pytest.param(
            "pod.yaml",
            f"{POD}        volumeMounts: [{{mountPath: /dev/shm}}]\n",
            None,
            id="a volume of the pod",
        ),
        pytest.param("pod.yaml", POD.replace("Deployment", "LLMInferenceService"), None, id="a controller's"),
    ],
)
def test_shared_memory_of_a_container_is_read(name: str, text: str, little: str | None) -> None:
    (launch,) = read_launches(name, text)

    assert launch.little_shared_memory == little


@pytest.mark.parametrize(
    ("name", "text", "gib"),
    [
        pytest.param("compose.yaml", SERVICE, None, id="a service that says nothing"),
        pytest.param("compose.yaml", f"{SERVICE}    shm_size: 12gb\n", 12.0, id="a service"),
        pytest.param("compose.yaml", f"{SERVICE}    shm_size: 1gb\n    ipc: host\n", None, id="the host's"),
        pytest.param(
            "pod.yaml",
            f"{POD}        volumeMounts: [{{name: shm, mountPath: /dev/shm}}]\n"
            "      volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 12Gi}}]\n",
            12.0,
            id="a volume of the pod",
        ),
        pytest.param(
            "pod.yaml",
            f"{POD}        volumeMounts: [{{name: shm, mountPath: /dev/shm}}]\n"
            "      volumes: [{name: shm, emptyDir: {medium: Memory}}]\n",
            None,
            id="a volume without a bound",
        ),
    ],
)
def test_size_of_the_shared_memory_of_a_container_is_read(name: str, text: str, gib: float | None) -> None:
    (launch,) = read_launches(name, text)

    assert launch.container is not None
    assert launch.container.shared_memory_gib == gib


@pytest.mark.parametrize(
    ("name", "text", "granted"),
    [
        pytest.param("pod.yaml", POD, None, id="nothing said"),
        pytest.param(
            "pod.yaml",
            f"{POD}        resources: {{limits: {{cpu: 2500m}}, requests: {{cpu: 1}}}}\n",
            Granted(cpus=2.5, cpus_kept=1.0),
            id="limit and request",
        ),
        pytest.param(
            "pod.yaml",
            f"{POD}        resources: {{limits: {{cpu: '4'}}}}\n",
            Granted(cpus=4.0, cpus_kept=4.0),
            id="a limit is a request",
        ),
        pytest.param(
            "pod.yaml",
            f"{POD}        livenessProbe: {{initialDelaySeconds: 40, periodSeconds: 7}}\n",
            Granted(start_s=61.0, answer_s=1.0, deaf_s=21.0, restarts=True),
            id="three failures by default",
        ),
        pytest.param(
            "pod.yaml",
            f"{POD}        livenessProbe: {{}}\n        startupProbe: {{failureThreshold: 50}}\n",
            Granted(start_s=500.0, startup_probe=True, answer_s=1.0, deaf_s=30.0, restarts=True),
            id="the startup probe first",
        ),
        pytest.param(
            "pod.yaml",
            f"{POD}        readinessProbe: {{timeoutSeconds: 4, periodSeconds: 5, initialDelaySeconds: 9}}\n",
            Granted(answer_s=4.0, deaf_s=15.0),
            id="a readiness probe",
        ),
        pytest.param(
            "compose.yaml",
            f"{SERVICE}    cpus: 3.5\n    deploy: {{resources: {{limits: {{cpus: '2'}}}}}}\n",
            Granted(cpus=2.0, cpus_kept=2.0),
            id="the lower one of a service",
        ),
        pytest.param("compose.yaml", f"{SERVICE}    cpus: ${{CPUS}}\n", None, id="a variable"),
    ],
)
def test_cpus_and_patience_of_a_container_are_read(name: str, text: str, granted: Granted | None) -> None:
    (launch,) = read_launches(name, text)

    assert launch.granted == granted


CONFIG = "# mine\nmodel: org/model\nmax-num-seqs: 64\nenable-prefix-caching: true\ncpu_offload: 4\n"
RAY_SERVE = """\
applications:
- args:
    llm_configs:
    - model_loading_config: {model_id: m, model_source: org/model}
      engine_kwargs: {max_num_seqs: 64, enforce_eager: false}
"""
LLM_SERVICE = """\
kind: LLMInferenceService
metadata: {name: q}
spec:
  model: {uri: "hf://org/model"}
  parallelism: {tensor: 2}
  template:
    containers:
    - name: main
      image: vllm/vllm-openai:v0.12.0
      env: [{name: VLLM_ADDITIONAL_ARGS, value: "--max-num-seqs 64"}]
      resources: {limits: {nvidia.com/gpu: "2"}}
"""
MODEL_SERVICE = """\
modelArtifacts: {uri: "hf://org/model"}
decode:
  parallelism: {tensor: 2}
  containers:
  - {name: vllm, image: 'ghcr.io/llm-d/llm-d:v0.3.0', modelCommand: vllmServe, args: [--max-num-seqs, '64']}
"""
SERVICE = """\
kind: InferenceService
spec: {predictor: {model: {modelFormat: {name: vLLM}, args: [--max-num-seqs=64]}}}
"""
OPERATOR = """\
kind: Model
metadata: {name: q}
spec: {source: org/model}
---
kind: InferenceService
metadata: {name: s}
spec:
  modelRef: q
  runtime: vllm
  vllmConfig:
    maxNumSeqs: 64
    enablePrefixCaching: false
    hfTokenSecretRef: {name: t, key: k}
"""
RUNTIME = """\
kind: VLLMRuntime
metadata: {name: s}
spec:
  model: {modelURL: org/model, enableLoRA: true, enableTool: false, maxNumSeqs: 64}
  vllmConfig: {enableChunkedPrefill: true, v1: true, port: 8000, extraArgs: [--max-loras, '2']}
  deploymentConfig: {image: {name: 'vllm/vllm-openai:v0.12.0'}, resources: {gpu: "1"}}
"""
QUADLET = (
    "[Container]\nImage=vllm/vllm-openai:v0.12.0\nEnvironment=A=1\nExec=org/model \\\n --max-num-seqs 64\n"
)
DOCKERFILE = 'FROM vllm/vllm-openai:v0.12.0\nENV A=1\nCMD ["org/model", \\\n  "--max-num-seqs", "64"]\n'
PASSES_ON = (
    'FROM vllm/vllm-openai:v0.18.0\nENTRYPOINT ["bash", "-c", "prepare && exec vllm serve \\"$@\\"", "--"]\n'
    'CMD ["org/model", "--max-num-seqs", "64"]\n'
)
STAGES = "FROM python AS a\nFROM a\nENTRYPOINT exec vllm serve org/model --max-num-seqs 64\n"
FORMS = [
    pytest.param(
        "serve.yaml",
        CONFIG,
        "--model org/model --max-num-seqs 64 --enable-prefix-caching --cpu_offload 4",
        id="--config",
    ),
    pytest.param("ray.yaml", RAY_SERVE, "org/model --max-num-seqs 64 --no-enforce-eager", id="Ray Serve"),
    pytest.param(
        "llm.yaml",
        LLM_SERVICE,
        "org/model --tensor-parallel-size 2 --max-num-seqs 64",
        id="LLMInferenceService",
    ),
    pytest.param(
        "ms.yaml", MODEL_SERVICE, "org/model --tensor-parallel-size 2 --max-num-seqs 64", id="llm-d"
    ),
    pytest.param("isvc.yaml", SERVICE, "/mnt/models --max-num-seqs=64", id="InferenceService"),
    pytest.param(
        "operator.yaml", OPERATOR, "org/model --max-num-seqs 64 --no-enable-prefix-caching", id="LLMKube"
    ),
    pytest.param(
        "runtime.yaml",
        RUNTIME,
        "org/model --enable-lora --max-num-seqs 64 --enable-chunked-prefill --port 8000 --max-loras 2",
        id="VLLMRuntime",
    ),
    pytest.param("q.container", QUADLET, "org/model --max-num-seqs 64", id="quadlet"),
    pytest.param("Dockerfile", DOCKERFILE, "org/model --max-num-seqs 64", id="Dockerfile"),
    pytest.param("Dockerfile.sh", PASSES_ON, "org/model --max-num-seqs 64", id="a script that passes CMD on"),
    pytest.param("Dockerfile.gpu", STAGES, "org/model --max-num-seqs 64", id="a shell's ENTRYPOINT"),
]


@pytest.mark.parametrize(("name", "text", "expected"), FORMS)
def test_each_form_gives_the_words_of_its_server(name: str, text: str, expected: str) -> None:
    (launch,) = read_launches(name, text)

    assert words(launch).removeprefix("exec ") == f"vllm serve {expected}"
    placed = [word for word in launch.words if word.form in ("shell", "flow", "block", "value")]
    assert any("64" in text[word.start : word.end] for word in placed)


def test_a_runtime_of_an_operator_gives_its_gpus_and_version() -> None:
    (launch,) = read_launches("runtime.yaml", RUNTIME)
    assert (launch.name, launch.gpus, launch.version) == ("VLLMRuntime/s", 1, "0.12.0")
    assert not read_launches("runtime.yaml", OPERATOR.replace("runtime: vllm", "runtime: llamacpp"))


def test_a_quadlet_and_a_dockerfile_give_variables_and_version() -> None:
    for name, text in (("q.container", QUADLET), ("Dockerfile", DOCKERFILE)):
        (launch,) = read_launches(name, text)
        assert (env(launch), launch.version) == ({"A": "1"}, "0.12.0")


def test_a_shells_words_for_an_image_that_starts_the_server_are_a_fault() -> None:
    (launch,) = read_launches("Dockerfile", "FROM vllm/vllm-openai:v0.12.0\nCMD vllm serve org/model\n")

    assert launch.entry_fault is not None
    assert "takes '/bin/sh' as the model" in launch.entry_fault.why


def test_a_command_in_one_word_is_read_and_is_a_fault() -> None:
    word = "python3 -m vllm.entrypoints.openai.api_server --port 8080 --model org/m"
    text = f'kind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.9.2\n    command: ["{word}"]\n'

    (launch,) = read_launches("pod.yaml", text)

    assert [each.text for each in launch.words] == word.split()
    assert launch.entry_fault is not None
    assert "is one word" in launch.entry_fault.why


def test_yaml_that_only_resembles_a_config_is_no_server() -> None:
    assert read_launches("app.yaml", "host: a\nport: 1\nname: b\n") == []
    assert read_launches("app.yaml", "model: a\nlayers: 3\nlr: 0.1\n") == []


@pytest.mark.parametrize(
    ("command", "args", "cut"),
    [
        ("[sh, -c, vllm, serve]", "[m, --port, '9']", "'vllm'; 'serve'"),
        ("[/bin/bash, -c, exec vllm serve]", "[m, --port, '9']", "'exec vllm serve'; 'm'"),
        ("[sh, -c, vllm serve m]", "[--port, '9']", "'vllm serve m'; '--port'"),
        ('[sh, -c, vllm serve "$@", --]', "[m, --port, '9']", ""),
        ("[sh, -c, vllm serve m --port 9]", "[name]", ""),
    ],
)
def test_a_shell_runs_the_one_word_behind_its_option(command: str, args: str, cut: str) -> None:
    container = f"{{image: 'vllm/vllm-openai:v0.32.0', command: {command}, args: {args}}}"

    (launch,) = read_launches("pod.yaml", f"kind: Pod\nspec:\n  containers:\n  - {container}\n")

    assert words(launch).removeprefix("exec ") == "vllm serve m --port 9"
    assert (cut in launch.entry_fault.why) if launch.entry_fault else not cut


DESCRIBED = """\
kind: Service
metadata: {name: vllm, namespace: a}
---
kind: Deployment
metadata: {name: chat, namespace: %s}
spec:
  strategy: %s
  template:
    spec:
      runtimeClassName: nvidia
      volumes: [{name: s, emptyDir: {}}, {name: w, persistentVolumeClaim: {claimName: c}}]
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.32.0
          args: [m, --port, '9000']
          ports: [{name: web, containerPort: 9000}]
          livenessProbe: {httpGet: {path: /health, port: web}}
          readinessProbe: {httpGet: {path: /ready, port: 7000}}
          resources: {limits: {nvidia.com/gpu: 1, memory: 64Gi}}
          volumeMounts: [{name: s, mountPath: /dev/shm}, {name: w, mountPath: /w}]
        - {name: proxy, image: envoy, ports: [{containerPort: 7000}]}
"""


def test_a_manifest_describes_the_container_of_its_server() -> None:
    (launch,) = read_launches("d.yaml", DESCRIBED % ("a", "{}"))
    (apart,) = read_launches("d.yaml", DESCRIBED % ("b", "{type: Recreate}"))

    assert launch.container == Container(
        launcher="Kubernetes",
        image="vllm/vllm-openai:v0.32.0",
        mounts=(Mount(path="/dev/shm", lasting=False), Mount(path="/w")),  # noqa: S108 - paths inside
        checks=(HealthCheck(name="livenessProbe", port=9000),),  # the proxy has the other port
        memory_gib=64.0,
        asks_gpus=True,
        runtime="nvidia",
        surges=True,
        crowded="its claim of a volume binds it to one host, unless it is ReadWriteMany",
        port_variable=True,
    )
    assert apart.container is not None
    assert not apart.container.surges
    assert not apart.container.port_variable


@pytest.mark.parametrize(
    ("strategy", "surges"),
    [
        ("{rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}", False),
        ("{type: RollingUpdate, rollingUpdate: {maxSurge: 0%}}", False),
        ("{type: RollingUpdate, rollingUpdate: {maxSurge: 1}}", True),
    ],
)
def test_a_rolling_update_begins_with_a_new_pod_unless_told(strategy: str, surges: bool) -> None:
    (launch,) = read_launches("d.yaml", DESCRIBED % ("a", strategy))

    assert launch.container is not None
    assert launch.container.surges is surges


def test_a_service_of_compose_describes_its_container() -> None:
    text = """\
services:
  a:
    image: vllm/vllm-openai:v0.32.0
    command: m --port 9000
    mem_limit: 48g
    volumes: ["./hub:/root/.cache/huggingface:ro", {type: tmpfs, target: /t}]
    healthcheck: {test: [CMD-SHELL, "curl -fsS http://localhost:${PORT:-9000}/health || exit 1"]}
"""
    (launch,) = read_launches("compose.yaml", text)
    (open_ended,) = read_launches("compose.yaml", text.replace("/t}", "$T}"))

    assert launch.container == Container(
        launcher="compose",
        image="vllm/vllm-openai:v0.32.0",
        mounts=(Mount(path="/root/.cache/huggingface"), Mount(path="/t", lasting=False)),
        checks=(HealthCheck(name="healthcheck", port=9000, inside=True),),
        memory_gib=48.0,
    )
    assert open_ended.container is not None
    assert open_ended.container.mounts is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "pod.yaml",
            (
                "kind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.20.0\n"
                "    command: [sh, -c]\n    args: ['vllm serve $MODEL --port ${PORT:-8000}']\n"
                "    env: [{name: MODEL, value: org/model}, {name: PORT, value: '9000'}]\n"
            ),
        ),
        (
            "compose.yaml",
            (
                "services:\n  chat:\n    image: vllm/vllm-openai:v0.20.0\n    entrypoint: [sh, -c]\n"
                "    command: ['vllm serve $$MODEL --port $${PORT:-8000}']\n"
                "    environment: [MODEL=org/model, PORT=9000]\n"
            ),
        ),
        ("Dockerfile", "FROM base\nENV MODEL=org/model PORT=9000\nCMD vllm serve $MODEL --port $PORT\n"),
        (
            "Dockerfile",
            'FROM base\nENV MODEL=org/model PORT=9000\nCMD ["sh", "-c", "vllm serve $MODEL --port $PORT"]\n',
        ),
    ],
)
def test_a_shell_in_a_container_replaces_the_variables_that_its_file_sets(name: str, text: str) -> None:
    (launch,) = read_launches(name, text)
    assert words(launch) == "vllm serve org/model --port 9000"


def test_compose_itself_does_not_replace_by_the_variables_of_a_container() -> None:
    text = (
        "services:\n  chat:\n    image: vllm/vllm-openai:v0.20.0\n    entrypoint: [sh, -c]\n"
        "    command: ['vllm serve $MODEL']\n    environment: [MODEL=org/model]\n"
    )
    (launch,) = read_launches("compose.yaml", text)
    assert words(launch) == "vllm serve $MODEL"


@pytest.mark.parametrize("options", ["$MOUNT", "${MOUNT}", "${MOUNT[@]}"])
def test_a_variable_between_options_of_docker_is_no_image(options: str) -> None:
    text = f"docker run --gpus all -v /m:/m {options} \\\n  --name a vllm/vllm-openai:v0.20.0 /m -tp 2\n"

    (launch,) = read_launches("start.sh", text)

    command = replace(parse_command([word.text for word in launch.words]), live=True)
    assert command.setting["tensor_parallel_size"] == 2
    assert f" {options} --name a " in format_command(command, width=400)


def test_variables_that_hold_flags_in_the_script_of_a_container_are_unread() -> None:
    text = (
        'MORE=""; [ "$1" = 1 ] && MORE=--headless\n'
        "docker run --entrypoint bash vllm/vllm-openai:v0.20.0 -lc 'exec vllm serve m "
        "--no-enable-prefix-caching '\"$MORE\"' --max-num-seqs '\"$SEQS\"' -tp 2'\n"
    )

    (launch,) = read_launches("start.sh", text)

    command = parse_command([word.text for word in launch.words])
    assert launch.unread == ("line 2: the flags in $MORE are unknown",)
    assert command.setting["tensor_parallel_size"] == 2
    assert command.setting["max_num_seqs"] == "$SEQS"


@pytest.mark.parametrize(
    ("sizes", "more", "dropped"),
    [
        ("{tensor: 4}", "--max-num-seqs 64", "spec.parallelism.tensor (before 0.20) on"),
        ("{tensor: 2, pipeline: 3}", "-tp=2", "spec.parallelism.pipeline (as of 0.20) on"),
        ("{tensor: 2}", "--tensor-parallel-size 2", ""),
        ("{tensor: 1}", "", ""),
        ("{tensor: 8}\n  worker: {}", "", ""),
    ],
)
def test_kserve_hands_some_sizes_on_to_several_pods_alone(sizes: str, more: str, dropped: str) -> None:
    text = LLM_SERVICE.replace("{tensor: 2}", sizes).replace("--max-num-seqs 64", more)

    (launch,) = read_launches("llm.yaml", text)

    assert bool(launch.entry_fault) is bool(dropped)
    assert dropped in (launch.entry_fault.why if launch.entry_fault else "")


def test_a_pod_that_asks_for_a_part_of_a_gpu_is_refused() -> None:
    (launch,) = read_launches("d.yaml", (DESCRIBED % ("a", "{}")).replace("gpu: 1", "gpu: 0.5"))

    assert launch.container is not None
    assert launch.container.gpu_fault.endswith("asks for 0.5")


@pytest.mark.parametrize(
    ("block", "read"),
    [
        ("case $GPU in\n  h*|b*) N=8 ;;\n  *)\n    N=8\n    ;;\nesac", "8"),
        ("if [ -d /x ]; then N=8\nelif y; then\n  N=8; M=1\nelse\n  N=8\nfi", "8"),
        ("if [ -d /x ]; then export N=8; else export N=8; fi", "8"),
        ("case $GPU in\n  h*) N=8 ;;\n  *) N=4 ;;\nesac", "$N"),
        ("case $GPU in\n  h*) N=8 ;;\n  b*) N=8 ;;\nesac", "$N"),  # another GPU leaves it unset
        ("if [ -d /x ]; then N=8; fi", "$N"),
        ("if [ -d /x ]; then N=8; else [ -d /y ] && N=8; fi", "$N"),
        ("if [ -d /x ]; then N=$A; else N=$A; fi", "$N"),
        ("if [ -d /x ]; then N+=8; else N+=8; fi", "$N"),
        ("N=4\nif [ -d /x ]; then N=8; else N=8; fi", "$N"),
        ("if [ -d /x ]; then if y; then N=8; fi; else N=8; fi", "$N"),
    ],
)
def test_a_variable_that_every_branch_sets_alike_is_known(block: str, read: str) -> None:
    (launch,) = read_launches("a.sh", f"{block}\nvllm serve m --data-parallel-size $N\n")

    assert launch.words[-1].text == read
    assert ("N" in launch.env) is ("export" in block)


JOINED = """\
kind: InferenceService
metadata: {name: chat, namespace: a}
spec:
  predictor:
    model:
      modelFormat: {name: safetensors}
      runtime: ours
      args: [--max-num-seqs=12]
      env: [{name: VLLM_LOGGING_LEVEL, value: DEBUG}]
      resources: {limits: {nvidia.com/gpu: 2}}
---
kind: KIND
metadata: {name: ours, namespace: PLACE}
spec:
  containers:
  - name: kserve-container
    image: vllm/vllm-openai:v0.24.0
    command: COMMAND
    env: [{name: VLLM_LOGGING_LEVEL, value: INFO}, {name: HF_HOME, value: /hf}]
"""
MODULE = "[python, -m, vllm.entrypoints.openai.api_server, --model=/mnt/models, --max-model-len=9000]"


def join(kind: str = "ServingRuntime", place: str = "a", command: str = MODULE) -> list[Launch]:
    text = JOINED.replace("KIND", kind).replace("PLACE", place).replace("COMMAND", command)
    return read_launches("isvc.yaml", text)


def test_a_service_of_kserve_is_read_with_the_runtime_it_names() -> None:
    (launch,) = join()

    assert launch.name == "InferenceService/chat"
    assert words(launch).endswith("--model=/mnt/models --max-model-len=9000 --max-num-seqs=12")
    assert {name: each.value for name, each in launch.env.items()} == {
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "HF_HOME": "/hf",
    }
    assert (launch.gpus, launch.version) == (2, "0.24.0")


FORMATS = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: chat}
spec:
  predictor:
    model:
      modelFormat: {name: vLLM}
      storageUri: STORED
      args: [--max-num-seqs=9]
"""
OFFERED = """
---
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: NAME}
spec:
  supportedModelFormats: [{name: FORMAT, autoSelect: AUTO}]
  containers:
  - name: kserve-container
    image: vllm/vllm-openai:v0.21.0
    args: [--model=/mnt/models, --max-model-len=7000]
"""


def choose(*offers: tuple[str, str], stored: str = "hf://org/m:main") -> list[Launch]:
    runtimes = [
        OFFERED.replace("NAME", f"r{place}").replace("FORMAT", named).replace("AUTO", auto)
        for place, (named, auto) in enumerate(offers)
    ]
    return read_launches("isvc.yaml", FORMATS.replace("STORED", stored) + "".join(runtimes))


def test_a_service_of_kserve_that_names_no_runtime_has_the_one_that_offers_itself_for_its_format() -> None:
    (launch,) = choose(("vLLM", "true"))
    (stored,) = choose(("vLLM", "true"), stored="s3://models/m")

    assert launch.name == "InferenceService/chat"
    assert words(launch).endswith("--model=org/m --max-model-len=7000 --max-num-seqs=9")
    assert words(stored).endswith("--model=/mnt/models --max-model-len=7000 --max-num-seqs=9")
    assert launch.version == "0.21.0"


@pytest.mark.parametrize(
    "offers",
    [
        pytest.param((("vLLM", "false"),), id="on demand only"),
        pytest.param((("onnx", "true"),), id="another format"),
        pytest.param((("vLLM", "true"), ("vLLM", "true")), id="two of them"),
    ],
)
def test_a_runtime_of_kserve_that_is_not_sure_to_be_chosen_is_read_alone(
    offers: tuple[tuple[str, str], ...],
) -> None:
    service, *runtimes = choose(*offers)

    assert words(service) == "vllm serve org/m --max-num-seqs=9"
    assert [each.name.partition("/")[0] for each in runtimes] == ["ServingRuntime"] * len(offers)


def test_a_runtime_of_another_namespace_is_read_alone_unless_it_is_the_clusters() -> None:
    (apart,), (joined,) = join(place="b"), join("ClusterServingRuntime", place='""')

    assert apart.name.startswith("ServingRuntime/ours")
    assert joined.name == "InferenceService/chat"


def test_a_shell_in_the_runtime_hands_no_arguments_on() -> None:
    (launch,) = join(command='[bash, -c, "vllm serve /mnt/models --max-model-len 9000"]')

    assert words(launch) == "vllm serve /mnt/models --max-model-len 9000"
