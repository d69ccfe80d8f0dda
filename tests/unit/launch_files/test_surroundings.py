"""What a file says of the place of its server: where requests are led, and whether an update finds room."""

import pytest

from flettner.vllm_facts.launch_files.recognise import read_launches
from flettner.vllm_facts.serve_config import Container

POD = """\
kind: Deployment
metadata: {name: chat}
spec: {%s template: {metadata: {labels: {app: chat, tier: a}}, spec: {%s containers: [{name: server,
  image: vllm/vllm-openai:v0.30.0, args: [m], ports: [{name: web, containerPort: 8080%s}],
  resources: {limits: {nvidia.com/gpu: %d}}}%s]}}}
"""
SERVICE = """\
---
kind: Service
metadata: {name: chat}
spec: {selector: {app: %s}, ports: [{port: 80, targetPort: %s}]}
"""


def described(text: str, name: str = "d.yaml") -> Container:
    (launch,) = read_launches(name, text)
    assert launch.container is not None
    return launch.container


def pod(head: str = "", spec: str = "", port: str = "", gpus: int = 1, beside: str = "") -> str:
    return POD % (head, spec, port, gpus, beside)


@pytest.mark.parametrize(
    ("service", "beside", "asked"),
    [
        (SERVICE % ("chat", "9000"), "", (9000,)),
        (SERVICE % ("chat", "web"), "", (8080,)),
        (SERVICE % ("chat", "unknown"), "", ()),
        (SERVICE % ("other", "9000"), "", ()),
        (SERVICE % ("chat", "7000"), ", {name: proxy, image: envoy, ports: [{containerPort: 7000}]}", ()),
        ("", "", ()),
    ],
)
def test_the_services_of_a_pod_say_where_requests_are_led(
    service: str, beside: str, asked: tuple[int, ...]
) -> None:
    assert described(pod(beside=beside) + service).asked_ports == asked


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ("ports: ['8080:9000']", (9000,)),
        ("ports: ['127.0.0.1:80:8000/tcp', {target: 9000}]", (8000, 9000)),
        ("ports: ['8000-8003:8000-8003']", ()),
        ("ports: ['80:${INSIDE:-9000}']", (9000,)),
        ("ports: ['80:9000'], network_mode: host", ()),
        ("expose: ['9000']", ()),
    ],
)
def test_the_published_ports_of_compose_say_where_requests_are_led(more: str, asked: tuple[int, ...]) -> None:
    text = f"services:\n  a: {{image: vllm/vllm-openai:v0.30.0, command: m, {more}}}\n"

    assert described(text, "compose.yaml").asked_ports == asked


@pytest.mark.parametrize(
    ("text", "crowded"),
    [
        (pod(), ""),
        (pod("replicas: 3,", "volumes: [{name: w, persistentVolumeClaim: {claimName: c}}],"), ""),
        (
            pod("replicas: 1,", "volumes: [{name: w, persistentVolumeClaim: {claimName: c}}],"),
            "ReadWriteMany",
        ),
        (pod("strategy: {rollingUpdate: {maxUnavailable: 0}},"), "maxUnavailable"),
        (pod(spec="nodeSelector: {kubernetes.io/hostname: h},"), "one host"),
        (pod(spec="nodeSelector: {gpu: l4},"), ""),
        (pod(spec="hostNetwork: true,"), "a port of its host"),
        (pod(port=", hostPort: 80"), "a port of its host"),
        (pod(gpus=8), "8 GPUs"),
    ],
)
def test_a_sign_that_no_other_host_takes_the_new_pod_is_read(text: str, crowded: str) -> None:
    found = described(text).crowded

    assert crowded in found
    assert bool(crowded) is bool(found)
