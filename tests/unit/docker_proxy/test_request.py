import pytest

from flettner.tools.docker_proxy.errors import Refused
from flettner.tools.docker_proxy.request import ask_of

ID = "4f" * 32


@pytest.mark.parametrize(
    ("method", "target", "kind"),
    [
        ("GET", "/_ping", "ping"),
        ("HEAD", "/_ping", "ping"),
        ("GET", "/v1.41/version", "version"),
        ("GET", "/info", "info"),
        ("GET", "/v1.41/containers/json?limit=-1&all=1&size=0&trunc_cmd=0&filters=%7B%7D", "list"),
        ("GET", f"/v1.41/containers/{ID}/json", "inspect"),
        ("GET", "/v1.52/containers/json/json", "inspect"),
        ("GET", "/containers/x/logs?stdout=True&stderr=1&follow=0&tail=40&timestamps=false&details=", "logs"),
        (
            "GET",
            "/v1.41/events?since=1763740800.5&filters=%7B%22type%22%3A+%5B%22container%22%5D%7D",
            "events",
        ),
        ("GET", "/v1.41/images/vllm/vllm-openai:v0.11.0/json", "image"),
        ("GET", f"/v1.41/images/vllm/vllm-openai%40sha256:{ID}/json", "image"),
        ("GET", "/v1.41/networks/llm", "network"),
        ("POST", "/v1.41/containers/create?name=flettner-chat-r3", "create"),
        ("POST", f"/containers/{ID}/start", "start"),
        ("POST", "/v1.41/containers/x/stop?t=30", "stop"),
        ("POST", "/v1.41/containers/x/kill?signal=SIGKILL", "kill"),
        ("POST", "/v1.41/containers/x/update", "update"),
        ("POST", "/v1.41/containers/x/rename?name=flettner-chat-r3", "rename"),
        ("POST", "/v1.41/containers/x/wait?condition=next-exit", "wait"),
        ("GET", "/v1.41/containers/x/stats?stream=False&one-shot=True", "stats"),
        ("DELETE", "/v1.41/containers/x?v=False&link=False&force=True", "remove"),
        ("POST", "/v1.41/networks/llm/connect", "connect"),
        ("POST", "/networks/llm/disconnect", "disconnect"),
        ("GET", "/v1.41/containers/x/archive?path=%2Fetc%2Fvllm%2Fc.yaml", "file"),
    ],
)
def test_all_requests_of_flettner_are_allowed(method: str, target: str, kind: str) -> None:
    assert ask_of(method, target).route.kind == kind


def test_the_subject_and_the_parameters_are_read_once() -> None:
    ask = ask_of("GET", f"/v1.41/images/a%40sha256:{ID}/json")

    assert (ask.version, ask.subject) == ("/v1.41", f"a@sha256:{ID}")
    assert ask_of("POST", "/containers/x/stop?t=30").query == {"t": "30"}


@pytest.mark.parametrize(
    ("method", "target"),
    [
        # other operations of the Engine
        ("POST", "/containers/x/exec"),
        ("POST", "/exec/abc/start"),
        ("POST", "/containers/x/attach?stream=1"),
        ("GET", "/containers/x/attach/ws"),
        ("POST", "/containers/x/restart"),
        ("POST", "/containers/x/pause"),
        ("POST", "/containers/prune"),
        ("GET", "/containers/x/export"),
        ("GET", "/containers/x/top"),
        ("PUT", "/containers/x/archive?path=/"),
        ("POST", "/containers/x/copy"),
        ("POST", "/commit?container=x"),
        ("POST", "/build"),
        ("POST", "/images/create?fromImage=evil"),
        ("POST", "/images/load"),
        ("POST", "/images/x/tag?repo=vllm/vllm-openai"),
        ("DELETE", "/images/x"),
        ("POST", "/volumes/create"),
        ("DELETE", "/volumes/hf-cache"),
        ("GET", "/volumes"),
        ("POST", "/networks/create"),
        ("DELETE", "/networks/llm"),
        ("POST", "/swarm/init"),
        ("POST", "/services/create"),
        ("GET", "/secrets"),
        ("POST", "/plugins/pull?remote=x"),
        ("POST", "/session"),
        ("POST", "/grpc"),
        ("POST", "/auth"),
        ("GET", "/system/df"),
        ("GET", "/debug/pprof/"),
        ("GET", "/"),
        ("OPTIONS", "/containers/json"),
        ("CONNECT", "engine:80"),
        # alternative spellings of a path
        ("GET", "http://engine/version"),
        ("GET", "//version"),
        ("GET", "/v1.41//version"),
        ("GET", "/version/"),
        ("GET", "/./version"),
        ("POST", "/containers/../containers/x/start"),
        ("POST", "/containers/%2e%2e/containers/x/start"),
        ("POST", "/containers/x%2Fstart"),
        ("POST", "/containers/x%2fexec%3f/start"),
        ("POST", "/Containers/create"),
        ("post", "/containers/create"),
        ("POST", "/containers/create;x"),
        ("POST", "/containers/x/start#"),
        ("POST", "/containers/x\\start"),
        ("GET", "/containers/x y/json"),
        ("GET", "/containers/x%00/json"),
        ("GET", "/containers/\u017fx/json"),
        ("GET", "/images/../containers/json"),
        # versions
        ("POST", "/v1.23/containers/x/start"),
        ("POST", "/v1.18/containers/create"),
        ("POST", "/v1.041/containers/create"),
        ("POST", "/v2.0/containers/create"),
        ("POST", "/v1.41/v1.41/containers/create"),
        ("POST", "/V1.41/containers/create"),
        # parameters
        ("DELETE", "/containers/x?link=1"),
        ("DELETE", "/containers/x?v=0&v=1"),
        ("DELETE", "/containers/x?v=yes"),
        ("POST", "/containers/x/kill?signal=SIG%00KILL"),
        ("POST", "/containers/x/rename?name=../x"),
        ("POST", "/containers/x/start?checkpoint=evil&checkpoint-dir=/"),
        ("POST", "/containers/create?name=flettner-x&name=vllm"),
        ("GET", "/events?filters=%ff"),
        ("GET", "/containers/json?all"),
        ("GET", "/version?" + "x" * 9000),
    ],
)
def test_all_other_requests_are_refused(method: str, target: str) -> None:
    with pytest.raises(Refused):
        ask_of(method, target)
