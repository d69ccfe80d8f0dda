"""The config file: its values, and errors that name every invalid value."""

import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flettner.actuators.envoy.plugin import EnvoyPlugin
from flettner.agent.config import loader
from flettner.agent.config.listen import Certificate
from flettner.agent.config.loader import Config, load_config
from flettner.agent.config.plugin_tables import POLICIES
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.model import Bound, Objective, Slo, Step
from flettner.primitives.address import UnixSocket
from flettner.sensors.proxy_requests.plugin import ProxyRequests
from tests.support.sampling import examples

HERE = Path("/etc/flettner")
EXAMPLE = Path(__file__).parents[3] / "examples" / "flettner.toml"
SMALLEST = """
[[targets]]
name = "chat"
[targets.engine]
kind = "process"
"""
TWO = """
[[targets]]
name = "chat"
engine = { kind = "process" }
[[targets]]
name = "batch"
engine = { kind = "process" }
traffic = { listen = "127.0.0.1:8081" }
"""


def built(kind: str, name: str, options: Mapping[str, Any], *, table: str) -> object:
    """Stub of a plugin that rejects the option `bad`."""
    if "bad" in options:
        raise ConfigError(f"[{table}] bad: unknown key")
    return (kind, name, dict(options))


class Bringing:
    """An engine with its own sensor on the same host."""

    sensors: ClassVar[dict[str, tuple[str, ...]]] = {"ears": ("host",)}


def bringing(kind: str, name: str, options: Mapping[str, Any], *, table: str) -> object:
    return Bringing() if kind == "actuators" else built(kind, name, options, table=table)


def parsed(text: str) -> Config:
    return loader.parse_config(text, here=Path("/etc/flettner"), build=built)


def errors(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    return str(caught.value).splitlines()


# values


def test_the_defaults_are_safe() -> None:
    config = parsed(SMALLEST)

    assert (config.mode, config.approval) == ("advise", "any")
    assert config.api.listen == (UnixSocket(Path("/run/flettner/api.sock")),)
    assert (config.api.users, config.api.groups, config.api.certificate) == ({}, {}, None)
    assert config.state_dir == Path("/var/lib/flettner")
    assert config.api.tokens_file is None
    assert tuple(part.name for part in config.policies) == POLICIES
    (target,) = config.targets
    assert (target.name, target.profile, target.strategy) == ("chat", "", "auto")
    assert target.slo == Slo()
    assert target.engine.plugin == ("actuators", "process", {})
    assert target.traffic.plugin == ("actuators", "envoy", {})
    assert EnvoyPlugin().listen == "127.0.0.1:8080"
    assert [part.name for part in target.sensors] == ["vllm_metrics", "proxy_requests"]
    assert target.plan.steps == (
        Step(weight=5, requests=20, at_least_s=30, at_most_s=600),
        Step(weight=50, requests=100, at_least_s=60, at_most_s=2700),
        Step(weight=100, requests=200, at_least_s=1800, at_most_s=7200),
    )
    assert (target.plan.start_s, target.plan.warm_up_s, target.plan.drain_s) == (900, 300, 600)
    assert (target.plan.lease_s, target.plan.warm_up_requests) == (15, 20)
    assert (target.cooldown_s, target.suggestion_ttl_s, target.changes_per_day) == (600, 3600, 8)
    assert target.bounds["max_num_seqs"] == Bound(min=1, max=1024, octaves=3)
    assert target.bounds["gpu_memory_utilization"] == Bound(min=0.5, max=0.92)


def test_the_example_loads_and_equals_the_defaults() -> None:
    as_it_is = load_config(EXAMPLE)
    text = EXAMPLE.read_text(encoding="utf-8")
    uncommented = "\n".join(
        line.removeprefix("# ")
        for line in text.splitlines()
        if not line.startswith("# ") or line[2:].lstrip().startswith(("[", "{", "]")) or " = " in line[:40]
    )

    with_all = loader.parse_config(uncommented.replace('tokens_file = "tokens"', ""), here=EXAMPLE.parent)

    assert with_all.targets[0].plan == replace(as_it_is.targets[0].plan, own_shares=True)
    assert with_all.targets[0].cooldown_s == as_it_is.targets[0].cooldown_s
    assert with_all.mode == as_it_is.mode
    bounds = dict(with_all.targets[0].bounds)
    assert bounds.pop("max_num_batched_tokens").allowed[:2] == (256, 512)
    assert bounds == {k: v for k, v in as_it_is.targets[0].bounds.items() if k in bounds}


def test_other_cards_have_their_prices_by_name() -> None:
    (target,) = parsed(
        SMALLEST + '[targets.cost]\ngpu_hour = 2.5\ncards = { L40S = 1.1, "RTX 4090" = 0.5 }'
    ).targets

    assert target.cards == {"L40S": 1.1, "RTX 4090": 0.5}


def test_reads_every_key() -> None:
    (target,) = parsed(
        """
        agent = { state_dir = "var", mode = "auto" }
        api = { listen = "[::1]:9000", tokens_file = "tokens" }
        [[targets]]
        name = "chat-7b"
        profile = "batch"
        gpu = "H100 80GB"
        slo = { ttft = { under = "500ms" }, e2e = { under = 20, share = 0.9 }, errors = { share = 0.99 } }
        engine = { kind = "docker", strategy = "replace", image = "x", mounts = ["a", "b"] }
        traffic = { kind = "nginx", listen = "0.0.0.0:80", threads = 2 }
        sensors = { nvidia_smi = { every_s = 5 }, vllm_metrics = false, proxy_requests = true }
        [targets.bounds]
        max_num_seqs = { max = 64 }
        watermark = { min = 0.0, max = 0.1, step = 0.025 }
        max_num_batched_tokens = { allowed = [2048, 4096], octaves = 0.5 }
        scheduling_policy = { allowed = ["fcfs", "priority"] }
        chat_template = { allowed = ["a.jinja"] }
        "compilation_config.mode" = { allowed = [3] }
        [targets.rollout]
        steps = [{ weight = 1, requests = 5, at_least = "500ms", at_most = "1m" }]
        hold = "2h"
        hold_requests = 7
        start = "1h"
        lease = "5s"
        changes_per_day = 0
        [targets.cost]
        gpu_hour = 2.5
        save = true
        [targets.bounds.servers]
        min = 2
        """
    ).targets

    assert target.slo == Slo(
        ttft=Objective(under_s=0.5, share=0.95), e2e=Objective(under_s=20, share=0.9), errors=0.99
    )
    assert target.strategy == "replace"
    assert target.engine.options == {"image": "x", "mounts": ("a", "b")}
    assert target.traffic.options == {"listen": "0.0.0.0:80", "threads": 2}
    assert [(part.name, part.options) for part in target.sensors] == [
        ("nvidia_smi", {"every_s": 5}),
        ("proxy_requests", {}),
    ]
    assert target.bounds["max_num_seqs"] == Bound(min=1, max=64, octaves=3)
    assert target.bounds["watermark"].allowed == (0.0, 0.025, 0.05, 0.075, 0.1)
    assert target.bounds["max_num_batched_tokens"] == Bound(
        min=256, max=32768, allowed=(2048, 4096), octaves=0.5
    )
    assert target.bounds["scheduling_policy"].allowed == ("fcfs", "priority")
    assert target.bounds["chat_template"].allowed == ("a.jinja",)
    assert target.bounds["compilation_config.mode"].allowed == (3,)
    assert target.plan.steps == (
        Step(weight=1, requests=5, at_least_s=0.5, at_most_s=60),
        Step(weight=100, requests=7, at_least_s=7200, at_most_s=28800),
    )
    assert (target.plan.start_s, target.plan.lease_s, target.changes_per_day) == (3600, 5, 0)
    assert target.gpu == "H100 80GB"
    assert (target.gpu_hour, target.saves, target.bounds["servers"]) == (2.5, True, Bound(min=2))


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ("", {"ears": {"host": "tcp://h"}}),
        ("sensors = { ears = true }", {"ears": {"host": "tcp://h"}}),
        ("sensors = { ears = { every_s = 5 } }", {"ears": {"host": "tcp://h", "every_s": 5}}),
        ('sensors = { ears = { host = "tcp://other" } }', {"ears": {"host": "tcp://other"}}),
        ("sensors = { ears = false }", {}),
    ],
)
def test_an_engine_enables_its_own_sensors(tables: str, expected: dict[str, object]) -> None:
    text = f'[[targets]]\nname = "chat"\nengine = {{ kind = "x", host = "tcp://h", stop_s = 1 }}\n{tables}'

    (target,) = loader.parse_config(text, here=Path("/etc/flettner"), build=bringing).targets

    default_sensors: dict[str, object] = {"vllm_metrics": {}, "proxy_requests": {}}
    assert {part.name: part.options for part in target.sensors} == default_sensors | expected


def test_paths_are_relative_to_the_file() -> None:
    config = parsed(SMALLEST + '[agent]\nstate_dir = "state"\n[api]\ntokens_file = "/run/tokens"\n')

    assert config.state_dir == Path("/etc/flettner/state")
    assert config.api.tokens_file == Path("/run/tokens")


def test_policies_keep_the_order_of_the_file() -> None:
    config = parsed(SMALLEST + "[policies]\nlast = {}\nadmission = { x = 1 }\nprefill_budget = false\n")

    policies = [(part.name, part.options) for part in config.policies]
    assert policies[-2:] == [("last", {}), ("admission", {"x": 1})]
    assert len(policies) == len(POLICIES)


@pytest.mark.parametrize(
    ("written", "expected_s"),
    [
        ('"500ms"', 0.5),
        ('"30s"', 30),
        ('"1.5 m"', 90),
        ('"10m"', 600),
        ('"2h"', 7200),
        ('"1d"', 86400),
        ("7", 7),
    ],
)
def test_parses_durations(written: str, expected_s: float) -> None:
    (target,) = parsed(f"{SMALLEST}[targets.rollout]\ncooldown = {written}\n").targets

    assert target.cooldown_s == expected_s


# errors


def at(table: str, line: str, expected: str) -> tuple[str, str]:
    """A table with this line, and the beginning of the error."""
    return f"[{table}]\n{line}", f"[{table}] {expected}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        at("agent", 'mode = "atuo"', "mode: must be 'advise', 'approve' or 'auto', not 'atuo'"),
        at("agent", 'state_dri = "x"', "state_dri: unknown key; did you mean state_dir?"),
        at("agent", 'state_dir = ""', "state_dir: must be a path, not ''"),
        at("agent", 'state_dir = "a\\u0000"', "state_dir: must be a path, not"),
        ("[agnet]", "agnet: unknown key; did you mean agent?"),
        at("targets.slo", "ttfs = {}", "ttfs: unknown key; did you mean ttft?"),
        at("targets.slo", 'ttft = { under = "5 parsec" }', "ttft.under: must be a duration like"),
        at("targets.slo", "ttft = { under = -1 }", "ttft.under: must be a duration of 0 s to 366 d"),
        at("targets.slo", "ttft = { under = nan }", "ttft.under: must be a duration of 0 s"),
        at("targets.slo", "ttft = { under = 0 }", "ttft.under: must be longer than 0 s"),
        at("targets.slo", "ttft = { under = true }", "ttft.under: must be a duration like"),
        at("targets.slo", "ttft = {}", "ttft.under: missing; it is required"),
        at("targets.slo", "ttft = { under = 1, share = 0 }", "ttft.share: must be greater than 0"),
        at("targets.slo", "errors = { share = 99.9 }", "errors.share: must be less than or equal to 1"),
        at("targets.slo", "errors = { share = '1' }", "errors.share: must be a number, not '1'"),
        at("targets.traffic", "listen = 'proxy:80'", "listen: must be an IP address and a port"),
        at("targets.traffic", "listen = '127.0.0.1'", "listen: must be an IP address and a port"),
        at("targets.traffic", "listen = '::1:80'", "listen: must be an IP address and a port"),
        at("targets.traffic", "listen = '127.0.0.1:99999'", "listen: must be an IP address and a port"),
        at("targets.traffic", "listen = '127.0.0.1:'", "listen: must be an IP address and a port"),
        at(
            "targets.traffic",
            "listen = '127.0.0.1:8090'\n[api]\nlisten = '127.0.0.1:8090'",
            "listen: 127.0.0.1:8090 is taken by [api]",
        ),
        at(
            "targets.traffic",
            "listen = '0.0.0.0:8090'\n[api]\nlisten = ['unix:/a', '127.0.0.1:8090']",
            "listen: 0.0.0.0:8090 is taken by [api]",
        ),
        at("targets.traffic", "bad = 1", "bad: unknown key"),
        ("[targets.sensors]\nx = 5", "[targets.sensors.x]: must be a table of options, or false, not 5"),
        at("targets.sensors.x", "bad = 5", "bad: unknown key"),
        (
            "[targets.bounds.max-num-seqs]",
            "[targets.bounds.max-num-seqs]: unknown knob; did you mean max_num_seqs?",
        ),
        (
            "[targets.bounds.trust_remote_code]",
            "[targets.bounds.trust_remote_code]: flettner does not change trust_remote_code unless its",
        ),
        (
            "[targets.bounds.load_format]\noctaves = 2",
            "[targets.bounds.load_format]: flettner does not change load_format unless its values are named",
        ),
        (
            "[targets.bounds.'compilation_config.mode']\nallowed = []",
            '[targets.bounds."compilation_config.mode"]: flettner does not change compilation_config.mode',
        ),
        at("targets.bounds.watermark", "mix = 1", "mix: unknown key; did you mean min?"),
        at("targets.bounds.watermark", "min = inf", "min: must be a finite number"),
        at("targets.bounds.watermark", "min = 2\nmax = 1", "min: 2 is above max 1"),
        at("targets.bounds.watermark", "step = 1", "step: needs min and max"),
        at(
            "targets.bounds.watermark",
            "min = 0\nmax = 1\nstep = 0.00001",
            "step: makes more than 10000 values",
        ),
        at(
            "targets.bounds.watermark",
            "min = 0\nmax = 1\nstep = 0.1\nallowed = [1]",
            "step: cannot be combined with allowed",
        ),
        at(
            "targets.bounds.watermark",
            "allowed = [1979-05-27]",
            "allowed[0]: must be a number, a string, true or false",
        ),
        at("targets.rollout", "steps = []", "steps: must be 1 to 20 steps, not 0"),
        at(
            "targets.rollout",
            "steps = [5]",
            "steps[0]: must be a table like { weight = 10, requests = 200, at_least = ",
        ),
        at(
            "targets.slo",
            "ttft = '500ms'",
            "ttft: must be a table like { under = \"500ms\", share = 0.95 }, not '500ms'",
        ),
        at("targets.rollout", "lease = '2s'", "lease: must be 5 to 60 s, not 2: it is renewed once"),
        at("targets.rollout", "lease = '2m'", "lease: must be 5 to 60 s, not 120"),
        at("targets.rollout", "hold_at_most = '5m'", "hold_at_most: must be longer than hold"),
        at("targets.rollout", "changes_per_day = -1", "changes_per_day: must be greater than or"),
        at("targets.cost", "gpu_hour = 0", "gpu_hour: must be greater than 0"),
        at("targets.cost", "cards = { L41 = 1.1 }", "cards: the speed of 'L41' is unknown"),
        at("policies.x", "bad = 1", "bad: unknown key"),
        ("[policies]\nx = 'yes'", "[policies.x]: must be a table of options, or false, not 'yes'"),
    ],
    ids=lambda value: str(value).replace("\n", " ")[:50],
)
def test_names_an_invalid_value_with_its_key(text: str, expected: str) -> None:
    (message,) = errors(SMALLEST + text)

    assert message.startswith(expected)


def test_a_kind_of_traffic_that_no_rule_knows_is_refused() -> None:
    (message,) = errors(SMALLEST.replace('name = "chat"', 'name = "chat"\nprofile = "chatt"'))

    assert message == "[[targets]] profile: must be one of api, batch, chat, rag, wide-ep, not 'chatt'"


def test_a_gpu_that_nobody_knows_is_no_fact() -> None:
    named = SMALLEST.replace('name = "chat"', 'name = "chat"\ngpu = "Z9"')

    assert errors(named) == [
        """[[targets]] gpu: 'Z9' is no GPU that flettner knows: write a model, as "L4", or "cpu" for none"""
    ]
    assert parsed(named.replace("Z9", "cpu")).targets[0].gpu == "cpu"


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("weight = 0, requests = 1, at_least = 1, at_most = 2", "[1].weight: must be greater than or equal"),
        ("weight = 100, requests = 1, at_least = 1, at_most = 2", "[1].weight: must be less than or equal"),
        ("weight = 5, requests = 1, at_least = 1, at_most = 2", ": the weights must grow from step to step"),
        ("weight = 9, requests = 0, at_least = 1, at_most = 2", "[1].requests: must be greater than"),
        ("weight = 9, requests = 1, at_least = 2, at_most = 2", "[1].at_most: must be longer than at_least"),
        ("weight = 9, requests = 1, at_least = 1, at_mots = 2", "[1].at_mots: unknown key; did you mean at"),
    ],
)
def test_names_an_invalid_step_with_its_number(step: str, expected: str) -> None:
    first = "{ weight = 5, requests = 1, at_least = 1, at_most = 2 }"

    message = errors(f"{SMALLEST}[targets.rollout]\nsteps = [{first}, {{ {step} }}]\n")

    assert any(line.startswith(f"[targets.rollout] steps{expected}") for line in message)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "[[targets]]: missing; it is required"),
        ("targets = []", "[[targets]]: at least one is required"),
        ("targets = 5", "[[targets]]: must be a list, not 5"),
        ("agent = 5" + SMALLEST, "[agent]: must be a table, not 5"),
        (
            SMALLEST.replace("[[targets]]", "[targets]"),
            "[[targets]]: must be a list of tables: write two brackets",
        ),
        (
            "[[targets]]\nname = 'Chat'\nengine = { kind = 'x' }",
            "[[targets]] name: must be lower-case letters",
        ),
        (
            "[[targets]]\nname = \"a\\n\"\nengine = { kind = 'x' }",
            "[[targets]] name: must be lower-case letters",
        ),
        ("[[targets]]\nname = 'a'", "[targets.engine]: missing; it is required"),
        ("[[targets]]\nname = 'a'\nengine = {}", "[targets.engine] kind: missing; it is required"),
        ("[[targets]]\nname = 'a'\nengine = { kind = 5 }", "[targets.engine] kind: must be a string, not 5"),
        ("[agent", "not TOML: "),
        ("a = " + "[" * 5000, "not a flettner config: it is nested too deeply"),
        ("a." * 5000 + "b = 1", "not a flettner config: it is nested too deeply"),
        ("a = " + "9" * 5000, "not TOML: "),
    ],
    ids=lambda value: str(value)[:30],
)
def test_rejects_an_invalid_file_with_a_one_line_error(text: str, expected: str) -> None:
    (message,) = errors(text)

    assert message.startswith(expected)


def test_without_tls_the_api_listens_on_loopback_only() -> None:
    for listen in ("0.0.0.0:8090", "192.0.2.1:8090", "[::]:8090"):
        (message,) = errors(f"{SMALLEST}[api]\nlisten = '{listen}'\n")
        assert message.startswith(f"[api] listen: {listen} is not a loopback address")
        assert "TLS" in message
    with_tls = parsed(f"{SMALLEST}[api]\nlisten = '0.0.0.0:1'\ntls_cert = 'a.pem'\ntls_key = 'a.key'\n")
    assert with_tls.api.certificate == Certificate(chain=HERE / "a.pem", key=HERE / "a.key", client_ca=None)


@pytest.mark.parametrize(
    ("written", "addresses"),
    [
        ("'localhost:1'", ("localhost:1",)),
        ("'unix:/run/a.sock'", ("unix:/run/a.sock",)),
        ("['unix:/run/a.sock', '[::1]:1']", ("unix:/run/a.sock", "[::1]:1")),
    ],
)
def test_the_api_listens_on_one_address_or_several(written: str, addresses: tuple[str, ...]) -> None:
    assert tuple(map(str, parsed(f"{SMALLEST}[api]\nlisten = {written}\n").api.listen)) == addresses


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("listen = []", "[api] listen: must be an address like"),
        ("listen = 'unix:api.sock'", "[api] listen: must be unix: and an absolute path"),
        (f"listen = 'unix:/{'x' * 107}'", "[api] listen: must be a path of at most 107"),
        ("listen = ['unix:/a', 'b']", "[api] listen: must be an IP address and a port"),
        ("listen = ['[::1]:1', '[::1]:1']", "[api] listen: [::1]:1 is taken by [api] listen"),
        ("tls_cert = 'a'", "[api] tls_key: is required with tls_cert"),
        ("tls_key = 'a'", "[api] tls_cert: is required with tls_key"),
        ("tls_client_ca = 'a'", "[api] tls_cert: is required with tls_client_ca"),
        ("certificates = { ann = 'viewer' }", "[api] tls_client_ca: is required with certificates"),
        ("certificates = { 'a b' = 'viewer' }", "[api] certificates.a b"),
        ("users = { ann = 'root' }", "[api] users.ann: must be 'viewer', 'operator' or 'admin'"),
        ("users = { 'a b' = 'viewer' }", "[api] users.a b"),
        ("hosts = ['a.example:80']", "[api] hosts[0]: must be a name"),
        ("trusted_proxies = ['10.0.0.1/8']", "[api] trusted_proxies[0]: must be an address or a network"),
        ("trusted_proxies = ['proxy']", "[api] trusted_proxies[0]: must be an address or a network"),
        ("trusted_proxies = [8]", "[api] trusted_proxies[0]: must be an address or a network"),
        ("trusted_proxies = ['::/0']", "[api] trusted_proxies[0]: must be an address or a network"),
    ],
)  # fmt: skip
def test_names_an_invalid_value_in_the_api_table(table: str, expected: str) -> None:
    (message,) = errors(f"{SMALLEST}[api]\n{table}\n")

    assert message.startswith(expected)


def test_reports_all_errors_at_once() -> None:
    message = errors(
        """
        [agent]
        mode = 1
        [[targets]]
        name = "a"
        engine = { kind = "x", bad = 1, strategy = "serge" }
        sensors = { vllm_metrics = { bad = 1 } }
        bounds = { max_num_seq = {} }
        rollout = { lease = 1, hold = "x" }
        [[targets]]
        name = "a"
        engine = { kind = "x" }
        [policies.admission]
        bad = 1
        """
    )

    assert [line.split(":")[0] for line in message] == [
        "[agent] mode",
        "[targets.engine of a] strategy",
        "[targets.rollout of a] hold",
        "[targets.rollout of a] lease",
        "[[targets]] name",
        "[targets.traffic of a] listen",
        "[targets.bounds.max_num_seq of a]",
        "[policies.admission] bad",
        "[targets.engine of a] bad",
        "[targets.sensors.vllm_metrics of a] bad",
    ]


def test_with_several_targets_an_error_names_the_target() -> None:
    (message,) = errors(TWO + "[targets.slo]\nttfs = 1\n")

    assert message.startswith("[targets.slo of batch] ttfs: unknown key")


class OneProgram:
    """A proxy of which one program serves all targets."""

    shared_options: ClassVar[tuple[str, ...]] = ("threads",)

    def __init__(self, threads: int = 2, **_: object) -> None:
        self.threads = threads


@pytest.mark.parametrize("same", [True, False])
def test_options_of_one_program_are_the_same_in_all_targets(same: bool) -> None:
    def one_program(kind: str, name: str, options: Mapping[str, Any], *, table: str) -> object:
        return OneProgram(**options) if name == "one" else built(kind, name, options, table=table)

    def parse() -> Config:
        text = "".join(
            f'[[targets]]\nname = "{name}"\nengine = {{ kind = "x" }}\n'
            f'traffic = {{ kind = "one", listen = "127.0.0.1:{port}", threads = {threads} }}\n'
            for name, port, threads in (("a", 8081, 4), ("b", 8082, 4 if same else 3))
        )
        return loader.parse_config(text, here=Path("/etc/flettner"), build=one_program)

    if same:
        assert len(parse().targets) == 2
        return
    with pytest.raises(ConfigError, match=r"traffic of b. threads: 3 differs from 4 of a, and one program"):
        parse()


class NamingEngine:
    """An engine whose servers belong to one target."""

    def __init__(self, names: Sequence[str] = (), place: str = "", **_: object) -> None:
        self.exclusive = tuple(("names", name, place) for name in names)


@pytest.mark.parametrize("place", ["", "elsewhere"])
def test_a_server_belongs_to_one_target(place: str) -> None:
    def naming(kind: str, name: str, options: Mapping[str, Any], *, table: str) -> object:
        return NamingEngine(**options) if name == "naming" else built(kind, name, options, table=table)

    def parse() -> Config:
        text = "".join(
            f'[[targets]]\nname = "{name}"\n'
            f'engine = {{ kind = "naming", names = ["vllm", "{name}"], place = "{where}" }}\n'
            f'traffic = {{ kind = "x", listen = "127.0.0.1:{port}" }}\n'
            for name, port, where in (("a", 8081, ""), ("b", 8082, place))
        )
        return loader.parse_config(text, here=Path("/etc/flettner"), build=naming)

    if place:
        assert len(parse().targets) == 2
        return
    with pytest.raises(ConfigError, match=r"\[targets.engine of b\] names: vllm serves a already"):
        parse()


def test_names_an_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b'name = "\xe9"')
    (tmp_path / "big").write_bytes(b"#" * (2**20 + 1))

    for name, why in [
        ("none", "No such file"),
        (".", "Is a directory"),
        ("latin", "UTF-8"),
        ("big", "larger"),
    ]:
        with pytest.raises(ConfigError, match=why) as caught:
            load_config(tmp_path / name, build=built)
        assert str(tmp_path) in str(caught.value)


# arbitrary input


values: st.SearchStrategy[str] = st.recursive(
    st.sampled_from(
        [
            "1",
            "-1",
            "0",
            "1e400",
            "nan",
            "inf",
            '""',
            '"x"',
            "'1s'",
            "true",
            "1979-05-27",
            "07:32:00",
            '"\\u0000"',
        ]
    )
    | st.integers().map(str)
    | st.floats().map(str),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.dictionaries(
            st.sampled_from(["under", "share", "kind", "weight", "min"]), inner, max_size=3
        ).map(lambda table: "{ " + ", ".join(f"{k} = {v}" for k, v in table.items()) + " }")
    ),
    max_leaves=6,
)
KEYS = [
    "agent",
    "agent.state_dir",
    "agent.mode",
    "api",
    "api.listen",
    "api.tokens_file",
    "api.hosts",
    "api.trusted_proxies",
    "api.users",
    "api.tls_cert",
    "targets",
    "policies",
    "policies.admission",
]
TARGET_KEYS = ["name", "profile", "slo", "slo.ttft", "slo.errors", "engine", "engine.kind", "engine.strategy"]
TARGET_KEYS += [
    "traffic",
    "traffic.listen",
    "sensors",
    "sensors.x",
    "bounds",
    "bounds.max_num_seqs",
    "rollout",
]
TARGET_KEYS += ["bounds.max_num_seqs.allowed", "rollout.steps", "rollout.hold", "rollout.lease", "zzz"]


@settings(max_examples=examples(200), deadline=None)
@given(
    st.dictionaries(st.sampled_from(KEYS), values, max_size=3),
    st.dictionaries(st.sampled_from(TARGET_KEYS), values),
)
def test_any_value_is_accepted_or_rejected_with_a_config_error(
    top: dict[str, str], target: dict[str, str]
) -> None:
    lines = [f"{key} = {value}" for key, value in top.items()]
    lines += ["[[targets]]", *(f"{key} = {value}" for key, value in target.items())]
    try:
        parsed("\n".join(lines))
    except ConfigError as error:
        assert str(error)  # noqa: PT017


@settings(max_examples=examples(200), deadline=None)
@given(st.text(alphabet=string.printable) | st.text())
def test_any_text_is_accepted_or_rejected_with_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError):
        parsed(text)


@settings(max_examples=examples(50), deadline=None)
@given(st.binary())
def test_any_bytes_are_accepted_or_rejected_with_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        load_config(path, build=built)


def test_two_targets_behind_gateways_have_no_address_in_common(tmp_path: Path) -> None:
    targets = "".join(
        f"""
        [[targets]]
        name = "{name}"
        [targets.engine]
        kind = "kubernetes"
        deployments = ["{name}"]
        [targets.traffic]
        kind = "gateway"
        route = "{name}"
        """
        for name in ("chat", "code")
    )

    config = loader.parse_config(targets, here=tmp_path)

    assert [target.traffic.plugin.route for target in config.targets] == ["chat", "code"]


def test_a_gateway_that_sends_its_access_log_has_a_sensor_for_it(tmp_path: Path) -> None:
    def sensors(records: str) -> dict[str, object]:
        text = f"""
            [[targets]]
            name = "chat"
            [targets.engine]
            kind = "kubernetes"
            deployments = ["vllm"]
            [targets.traffic]
            kind = "gateway"
            route = "llm"
            rule = "0"
            namespace = "people"
            {records}
        """
        [target] = loader.parse_config(text, here=tmp_path).targets
        return {sensor.name: sensor.plugin for sensor in target.sensors}

    without, records_sensor = sensors(""), sensors('records = "0.0.0.0:4317"')["proxy_requests"]

    assert list(without) == ["vllm_metrics"]
    assert isinstance(records_sensor, ProxyRequests)
    assert (records_sensor.listen, records_sensor.route, records_sensor.rule) == ("0.0.0.0:4317", "llm", "0")
    assert (records_sensor.namespace, records_sensor.request_source) == ("people", "access_log")
    with pytest.raises(ConfigError, match="records must be HOST:PORT"):
        sensors('records = "4317"')
