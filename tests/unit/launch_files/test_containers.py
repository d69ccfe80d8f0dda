"""Which containers are servers of vLLM, and which only have its image or name it."""

import pytest

from flettner.vllm_facts.launch_files.recognise import read_launches
from flettner.vllm_facts.shell_command.serve_command import parse_command
from tests.unit.launch_files.files import words

POD = """kind: Pod
spec:
  containers:
  - name: a
    image: vllm/vllm-openai:v0.20.0
    {container}
"""


@pytest.mark.parametrize(
    "container",
    [
        "command: [sleep, infinity]",
        "command: [tail, -f, /dev/null]",
        "command: [bash, -c, 'vllm bench serve --model m --base-url http://a:8000']",
        "command: [bash, -c, 'pip install vllm && python offline.py']",
    ],
)
def test_a_container_of_vllms_image_that_serves_nothing_is_no_server(container: str) -> None:
    assert read_launches("pod.yaml", POD.format(container=container)) == []


@pytest.mark.parametrize("script", ["./start_vllm.sh", "exec $(which vllm) serve m", "vllm_run.py --port 1"])
def test_a_script_that_serves_without_flags_of_its_own_is_told(script: str) -> None:
    (launch,) = read_launches("pod.yaml", POD.format(container=f'command: [bash, -c, "A=1; {script}"]'))

    assert launch.problem or launch.words


def test_what_a_hook_runs_in_a_container_is_no_server() -> None:
    hook = (
        "[sh, -c, 'while vllm_busy.sh; do curl -s localhost/metrics | grep vllm:num_requests_running; done']"
    )
    text = POD.format(
        container=f"args: [--model, m]\n    lifecycle: {{preStop: {{exec: {{command: {hook}}}}}}}\n"
        f"    livenessProbe: {{exec: {{command: {hook}}}}}"
    )

    (launch,) = read_launches("pod.yaml", text)

    assert words(launch) == "vllm serve --model m"


def test_a_port_of_a_variable_of_the_container_is_read() -> None:
    (launch,) = read_launches("pod.yaml", POD.format(container="args: [--model, m, --port, $(PORT)]"))
    command = parse_command([word.text for word in launch.words])

    assert (command.port, command.exposure) == (None, {})


def test_a_placeholder_of_an_example_is_a_value() -> None:
    (launch,) = read_launches(
        "run.sh", "vllm serve --model <your-model> \\\n  --served-model-name <name> > log 2<in\n"
    )

    assert words(launch) == "vllm serve --model <your-model> --served-model-name <name>"
