"""Manifests whose containers start a script of a ConfigMap."""

import pytest

from flettner.vllm_facts.launch_files.recognise import read_launches
from tests.unit.launch_files.files import words
from tests.unit.launch_files.test_readers import env

MANIFEST = """\
apiVersion: v1
kind: ConfigMap
metadata: {{name: start, namespace: {namespace}}}
data:
  README: how to serve
  run.sh: |
    #!/bin/bash
    export VLLM_LOGGING_LEVEL=INFO
    exec vllm serve org/model --port "$PORT" \\
      --max-num-seqs 5 "$@"
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: chat, namespace: ai}}
spec:
  template:
    spec:
      containers:
      - name: main
        image: vllm/vllm-openai:v0.20.0
        command: {command}
        env:
        - {{name: PORT, value: "9000"}}
        volumeMounts:
        - {mount}
      volumes:
      - name: files
        configMap: {{name: start{items}}}
"""
MOUNT = "{name: files, mountPath: /scripts}"


def read(command: str, mount: str = MOUNT, namespace: str = "ai", items: str = "") -> list[str]:
    text = MANIFEST.format(command=command, mount=mount, namespace=namespace, items=items)
    return [words(launch) for launch in read_launches("chat.yaml", text)]


@pytest.mark.parametrize(
    "command",
    [
        '["/scripts/run.sh"]',
        "[bash, /scripts/run.sh]",
        "[/bin/bash, -eu, /scripts/run.sh]",
        '[sh, -c, "exec /scripts/run.sh"]',
        '[bash, -c, "pip install x && bash /scripts/run.sh"]',
    ],
)
def test_the_command_of_a_mounted_script_is_read(command: str) -> None:
    (line,) = read(command)
    assert line.startswith("exec vllm serve org/model --port 9000 --max-num-seqs 5")


def test_words_behind_the_script_are_its_arguments() -> None:
    assert read("[bash, /scripts/run.sh, --max-model-len, '4096']") == [
        "exec vllm serve org/model --port 9000 --max-num-seqs 5 --max-model-len 4096"
    ]


def test_single_files_and_renamed_ones_are_found() -> None:
    whole = "{name: files, mountPath: /start.sh, subPath: run.sh}"
    assert len(read("[bash, /start.sh]", whole)) == 1
    items = ", items: [{key: run.sh, path: bin/serve.sh}]"
    assert len(read("[bash, /scripts/bin/serve.sh]", items=items)) == 1


@pytest.mark.parametrize("namespace", ["other", "''"])
def test_a_config_map_of_another_namespace_is_not_mounted(namespace: str) -> None:
    text = MANIFEST.format(command="[bash, /scripts/run.sh]", mount=MOUNT, namespace=namespace, items="")
    (launch,) = read_launches("chat.yaml", text)

    assert words(launch) == ""
    assert launch.problem == "bash starts the server: its flags cannot be told from the script's"


def test_the_script_keeps_its_place_for_changes() -> None:
    text = MANIFEST.format(command="[bash, /scripts/run.sh]", mount=MOUNT, namespace="ai", items="")
    (launch,) = read_launches("chat.yaml", text)
    five = next(word for word in launch.words if word.text == "5")
    assert text[five.start : five.end] == "5"
    assert env(launch) == {"PORT": "9000", "VLLM_LOGGING_LEVEL": "INFO"}
    assert launch.version == "0.20.0"
