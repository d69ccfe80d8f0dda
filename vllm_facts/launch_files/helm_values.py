"""The values of vLLM's production-stack chart: `servingEngineSpec.modelSpec`.

As its template helm/templates/deployment-vllm-multi.yaml writes the command.
"""

import json
from dataclasses import replace

from flettner.vllm_facts.launch_files.kubernetes import read_env
from flettner.vllm_facts.launch_files.launch import Launch, Word, line_of
from flettner.vllm_facts.launch_files.surroundings import is_part
from flettner.vllm_facts.launch_files.yaml_nodes import (
    Node,
    entries,
    get,
    items,
    list_words,
    text_at,
    word_of,
)
from flettner.vllm_facts.serve_config import Container
from flettner.vllm_facts.shell_command.docker_run import image_version

_VALUES = {
    "maxModelLen": "--max-model-len",
    "dtype": "--dtype",
    "tensorParallelSize": "--tensor-parallel-size",
    "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "maxLoras": "--max-loras",
}
_MODEL_VALUES = {"toolCallParser": "--tool-call-parser", "chatTemplate": "--chat-template"}
_MODEL_SWITCHES = {"enableLoRA": "--enable-lora", "enableTool": "--enable-auto-tool-choice"}


def read_values(text: str, document: Node) -> list[Launch]:
    """One server for each model that is deployed."""
    specs = items(get(document, "servingEngineSpec", "modelSpec"))
    return [_read_model(text, spec) for spec in specs if text_at(spec, "enabled").lower() != "false"]


def _read_model(text: str, spec: Node) -> Launch:
    config = get(spec, "vllmConfig")
    model = get(spec, "modelURL")
    words = [Word(text="vllm"), Word(text="serve"), *([word_of(model, "value")] if model else [])]
    words += [
        Word(text=flag) for name, flag in _MODEL_SWITCHES.items() if text_at(spec, name).lower() == "true"
    ]
    words += _flags(spec, _MODEL_VALUES)
    if config is not None:
        chunked = text_at(config, "enableChunkedPrefill").lower()
        words += (
            [Word(text=f"--{'' if chunked == 'true' else 'no-'}enable-chunked-prefill")] if chunked else []
        )
        cached = text_at(config, "enablePrefixCaching").lower() == "true"
        words.append(Word(text=f"--{'' if cached else 'no-'}enable-prefix-caching"))
        words += _flags(config, _VALUES)
        words += list_words(get(config, "extraArgs"))
    env, remarks = read_env(text, spec)
    unread: tuple[str, ...] = ()
    if text_at(spec, "lmcacheConfig", "enabled").lower() == "true":
        role = text_at(spec, "lmcacheConfig", "kvRole") or "kv_both"
        connector = json.dumps({"kv_connector": "LMCacheConnectorV1", "kv_role": role})
        words += [Word(text="--kv-transfer-config"), Word(text=connector)]
        unread = (f"line {line_of(text, spec.start_mark.index)}: the other settings of lmcacheConfig",)
    gpus = text_at(spec, "requestGPU")
    fault = _explain_part(spec, gpus)
    return Launch(
        name=text_at(spec, "name"),
        start=spec.start_mark.index,
        words=tuple(words),
        env=env,
        version=image_version(f"{text_at(spec, 'repository')}:{text_at(spec, 'tag')}"),
        gpus=int(gpus) or None if gpus.isdecimal() else None,
        container=Container(launcher="Kubernetes", gpu_fault=fault) if fault else None,
        unread=unread,
        remarks=tuple(remarks),
    )


def _explain_part(spec: Node, gpus: str) -> str:
    """Why the chart's pods get no GPU of their own; "" for whole ones, and for shares that HAMi gives."""
    if not is_part(gpus) or any(
        name.startswith("requestGPU") and name != "requestGPU" for name, _, _ in entries(spec)
    ):
        return ""
    if float(gpus) > 1:
        return f"Kubernetes counts whole GPUs and refuses the pod, which asks for requestGPU {gpus}"
    number = text_at(spec, "replicaCount")
    together = (
        f"its {number} replicas and others" if number.isdecimal() and int(number) > 1 else "it and others"
    )
    return (
        f"requestGPU {gpus} is less than one, for which the chart asks for no GPU at all: {together} may "
        "land on one GPU, the first of the host, where their shares of memory add up"
    )


def _flags(node: Node, names: dict[str, str]) -> list[Word]:
    values = [(flag, get(node, name)) for name, flag in names.items()]
    return [
        word
        for flag, value in values
        if value is not None
        for word in (replace(word_of(value, "value"), text=flag, form="none"), word_of(value, "value"))
    ]
