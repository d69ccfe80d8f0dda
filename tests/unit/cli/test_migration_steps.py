"""`flettner check` of a container prints the steps that route its clients through the proxy."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from flettner.agent.config.loader import Config, load_config, parse_config
from flettner.tools.cli.run import console_urls, migration_steps
from tests.support.ports import free_port


def config_of(engine: str, listen: str = "127.0.0.1:8080") -> Config:
    def build(kind: str, name: str, options: object, *, table: str) -> object:
        return (kind, name, options, table)

    text = f'[[targets]]\nname = "chat"\nengine = {engine}\ntraffic = {{ listen = "{listen}" }}\n'
    return parse_config(text, here=Path("/etc"), build=build)


def steps_for(engine: str, listen: str = "127.0.0.1:8080") -> str:
    (target,) = config_of(engine, listen).targets
    return migration_steps(target, Path("t.toml"))


DOCKER = '{ kind = "docker", containers = ["vllm", "vllm-2"] }'


def test_steps_name_containers_address_and_cost_of_each_method() -> None:
    text = steps_for(DOCKER)

    assert "chat: how to route the clients of vllm, vllm-2 through the proxy" in text
    assert "curl -fsS http://127.0.0.1:8080/v1/models" in text
    assert "-j REDIRECT --to-ports 8080" in text
    assert "Nothing is lost" in text
    assert "refused until the model is loaded again" in text
    assert max(map(len, text.splitlines())) <= 140


@pytest.mark.parametrize(
    ("listen", "curl", "only_here"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080/", True),
        ("0.0.0.0:80", "http://127.0.0.1:80/", False),
        ("[::1]:8080", "http://[::1]:8080/", True),
        ("192.0.2.7:8080", "http://192.0.2.7:8080/", False),
    ],
)
def test_warns_of_a_loopback_address(listen: str, curl: str, only_here: bool) -> None:
    text = steps_for(DOCKER, listen)

    assert curl in text
    assert ("Only this host reaches" in text) == only_here


def test_example_is_a_valid_config() -> None:
    example = Path(__file__).parents[3] / "examples" / "docker.toml"
    target = load_config(example).targets[0]

    assert migration_steps(target, example).startswith(
        "chat: how to route the clients of vllm through the proxy"
    )
    assert {part.name: dict(part.options) for part in target.sensors}["docker_events"] == {
        "containers": ("vllm",)
    }


def test_other_engines_have_no_migration_steps() -> None:
    assert steps_for('{ kind = "process", serving = "http://127.0.0.1:8000" }') == ""


def test_failed_check_prints_no_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from flettner.tools.cli.dispatch import main  # noqa: PLC0415 - half a second that the other tests need not wait

    config = tmp_path / "t.toml"
    engine = '{ kind = "process", serving = "http://127.0.0.1:1" }'
    config.write_text(f'agent = {{ state_dir = "s" }}\n[[targets]]\nname = "chat"\nengine = {engine}\n')

    assert main(["check", str(config), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["ok"], answer["take_over"]) == (False, {})


@pytest.mark.parametrize("runs", [False, True])
def test_a_check_ends_by_naming_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], runs: bool
) -> None:
    from flettner.agent.runtime.lock import hold_lock  # noqa: PLC0415 - as above
    from flettner.tools.cli.dispatch import main  # noqa: PLC0415 - as above

    config = tmp_path / "t.toml"
    engine = '{ kind = "process", command = ["vllm", "serve", "m"] }'
    traffic = f'traffic = {{ listen = "127.0.0.1:{free_port()}" }}'
    agent = f'agent = {{ state_dir = "s" }}\napi = {{ listen = "unix:{tmp_path}/s.sock" }}\n'
    config.write_text(f'{agent}[[targets]]\nname = "chat"\nengine = {engine}\n{traffic}\n')

    with hold_lock(tmp_path / "s") if runs else nullcontext():
        status = main(["check", str(config)])

    said = capsys.readouterr().out
    assert (status, said.splitlines()[-1]) == (
        0,
        f"next: flettner {'reload' if runs else f'run -c {config}'}",
    )


@pytest.mark.parametrize("mode", ["advise", "approve"])
def test_what_only_a_change_needs_is_no_problem_in_advise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    from flettner.tools.cli.dispatch import main  # noqa: PLC0415 - as above

    config = tmp_path / "t.toml"
    engine = '{ kind = "process", command = ["/no/such/vllm", "serve", "m"] }'
    agent = f'agent = {{ state_dir = "s", mode = "{mode}" }}\napi = {{ listen = "unix:{tmp_path}/s" }}\n'
    config.write_text(f'{agent}[[targets]]\nname = "chat"\nengine = {engine}\n')

    status = main(["check", str(config), "--json"])
    answer = json.loads(capsys.readouterr().out)

    mended = answer["obstacles" if mode == "advise" else "problems"]
    assert any("'/no/such/vllm' is missing or not executable" in line for line in mended), answer
    assert (status, answer["ok"]) == ((0, True) if mode == "advise" else (1, False))


@pytest.mark.parametrize(
    ("listen", "urls"),
    [
        ('["unix:/run/f/api.sock", "127.0.0.1:8090"]', ["http://127.0.0.1:8090/"]),
        ('"[::1]:8090"', ["http://[::1]:8090/"]),
        ('"unix:/run/f/api.sock"', []),
    ],
)
def test_run_names_the_address_of_the_console(listen: str, urls: list[str]) -> None:
    text = f'[api]\nlisten = {listen}\ntokens_file = "tokens"\n'
    text += (
        '[[targets]]\nname = "chat"\nengine = { kind = "docker" }\ntraffic = { listen = "127.0.0.1:8080" }\n'
    )

    config = parse_config(text, here=Path("/etc"), build=lambda *_, **__: None)
    assert console_urls(config) == urls
