"""Servers whose command stands in a file that a script writes."""

import pytest

from flettner.vllm_facts.launch_files.recognise import read_launches
from tests.unit.launch_files.files import words
from tests.unit.launch_files.test_readers import env

INSTALLER = """\
#!/bin/bash
MODEL="${MODEL:-org/model}"
PORT=9000
pip install vllm
cat > /opt/serve.sh <<'EOF'
#!/bin/bash
PORT="${PORT:-8000}"
exec vllm serve "$MODEL" --port "$PORT" \\
  --max-num-seqs 7
EOF
chmod +x /opt/serve.sh
"""


def test_a_start_script_that_an_installer_writes_is_read_with_the_installers_variables() -> None:
    (launch,) = read_launches("install.sh", INSTALLER)
    assert words(launch) == "exec vllm serve org/model --port 9000 --max-num-seqs 7"
    last = launch.words[-1]
    assert INSTALLER[last.start : last.end] == "7"


def test_a_unit_that_a_script_writes_by_tee_is_read() -> None:
    text = (
        "MODEL=org/model\nsudo tee /etc/systemd/system/vllm.service > /dev/null <<EOF\n[Service]\n"
        "Environment=HF_HOME=/data\nExecStart=/opt/venv/bin/vllm serve $MODEL --port 8001\nEOF\n"
    )
    (launch,) = read_launches("setup.sh", text)
    assert words(launch) == "/opt/venv/bin/vllm serve org/model --port 8001"
    assert env(launch) == {"HF_HOME": "/data"}
    assert {(word.start, word.form) for word in launch.words} == {(0, "none")}


def test_escaped_variables_of_a_written_script_are_its_own() -> None:
    text = (
        "LENGTH=4096\ncat << EOF | sudo tee /opt/run.sh\n#!/bin/bash\nSEQS=12\n"
        "vllm serve org/model \\\\\n  --max-num-seqs \\$SEQS --max-model-len $LENGTH\nEOF\n"
    )
    (launch,) = read_launches("setup.sh", text)
    assert words(launch) == "vllm serve org/model --max-num-seqs 12 --max-model-len 4096"


@pytest.mark.parametrize(
    "reader", ["ssh root@gpu 'bash -s'", "bash", "docker exec -i vllm sh", "kubectl apply -f -"]
)
def test_what_another_shell_or_kubectl_gets_by_a_here_document_is_read(reader: str) -> None:
    inner = "vllm serve org/model --port 9001\n"
    if "kubectl" in reader:
        inner = "kind: Pod\nspec:\n  containers:\n  - command: [vllm, serve, org/model, --port, '9001']\n"
    (launch,) = read_launches("deploy.sh", f"{reader} <<'EOF'\n{inner}EOF\n")
    assert words(launch) == "vllm serve org/model --port 9001"


def test_a_script_that_starts_a_server_is_read_itself() -> None:
    text = "cat > other.sh <<'EOF'\nvllm serve org/other\nEOF\nvllm serve org/model\n"
    (launch,) = read_launches("start.sh", text)
    assert words(launch) == "vllm serve org/model"


@pytest.mark.parametrize("reader", ["cat", "python3 -", "cat > notes.md"])
def test_a_text_that_starts_nothing_is_no_server(reader: str) -> None:
    assert read_launches("help.sh", f"{reader} <<'EOF'\nserve it with care (isn't it?)\nEOF\n") == []


@pytest.mark.parametrize("asked", ['"messages": []', '"prompt": "a"', '"input": "a"'])
def test_the_body_of_a_request_is_no_config_of_a_server(asked: str) -> None:
    body = f'{{"model": "m", {asked}, "max_tokens": 10, "temperature": 0.7}}'

    assert read_launches("run.sh", f"#!/bin/sh\ncat > body.json << EOF\n{body}\nEOF\n") == []
    assert read_launches("body.json", body) == []
