"""Templates of Helm and Jinja: what stands in them as it is."""

import pytest

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.recognise import read_launches
from flettner.vllm_facts.launch_files.templates import mask_template
from flettner.vllm_facts.launch_files.verified_edits import change_flags
from tests.unit.launch_files.files import words

HELM = """\
{{- if .Values.enabled }}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "c.name" . }}
  labels:
    {{- include "c.labels" . | nindent 4 }}
spec:
  template:
    spec:
      containers:
        - image: {{ .Values.image }}:{{ .Values.tag }}
          args:
            - --model={{ .Values.model }}
            - --max-num-seqs
            - "64"
            {{- if .Values.eager }}
            - --enforce-eager
            {{- else }}
            - --seed=1
            {{- end }}
          resources:
            limits: { nvidia.com/gpu: {{ .Values.gpus }} }
{{- end }}
"""


def test_a_template_is_read_without_its_values() -> None:
    (launch,) = read_launches("deployment.yaml", HELM)

    assert words(launch) == "vllm serve --model={{ .Values.model }} --max-num-seqs 64"
    assert launch.unread == (
        "line 18: whether --enforce-eager is added is unknown",
        "line 20: whether --seed=1 is added is unknown",
    )
    assert (launch.version, launch.gpus) == ("", None)
    assert "helm template CHART" in launch.remarks[0]


def test_a_literal_of_a_template_is_changed_in_its_place() -> None:
    after = change_flags("deployment.yaml", HELM, "", {"max_num_seqs": 32})
    assert after == HELM.replace('"64"', '"32"')


def test_the_tag_of_an_image_may_be_a_value() -> None:
    text = HELM.replace("{{ .Values.image }}", "vllm/vllm-openai").replace(
        "--model={{ .Values.model }}", "org/m"
    )
    (launch,) = read_launches("deployment.yaml", text)
    assert words(launch) == "vllm serve org/m --max-num-seqs 64"


def test_jinja_is_read_in_the_same_way() -> None:
    text = (
        "{% set a = 1 %}\nservices:\n  v:\n    image: vllm/vllm-openai:v0.21.0\n    command:\n"
        "      - --model={{ model }}\n{% for each in more %}\n      - --{{ each }}\n{% endfor %}\n"
        "      - --seed={{ seed }}\n    ports: [{{ port }}:8000]\n"
    )
    (launch,) = read_launches("compose.yml", text)
    assert words(launch) == "vllm serve --model={{ model }} --seed={{ seed }}"
    assert len(launch.unread) == 1


@pytest.mark.parametrize("text", [HELM, HELM[:200], "{{" * 50, "{{ a }} {% if %}", "{{ {} }}\n" * 5])
def test_a_masked_text_keeps_its_places(text: str) -> None:
    masked = mask_template(text)
    assert len(masked.text) == len(text)
    assert masked.text.count("\n") == text.count("\n")


def test_a_template_without_a_server_says_that_it_has_to_be_rendered() -> None:
    with pytest.raises(FlagError, match="a Helm template: render it"):
        read_launches("a.yaml", "a: {{ .Values.x }}\n{{- if .y }}\nb: 1\n{{- end }}\n")
