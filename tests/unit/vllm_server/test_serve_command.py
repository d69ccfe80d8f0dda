"""Read the flags of a container, and change them in place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.actuators.docker.container import Container, Json
from flettner.actuators.vllm.serve_command import ContainerCommand, ReadFile
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.values import Value
from tests.support.docker_documents import container, recorded


def serve(document: Json, read_file: ReadFile | None = None) -> ContainerCommand:
    return Container.parse(document, read_file).serve


API_SERVER = ("python3", "-m", "vllm.entrypoints.openai.api_server")
SAGEMAKER = ("./sagemaker-entrypoint.sh",)

FORMS = [
    pytest.param(
        ("vllm", "serve"), ("m", "--max-num-seqs", "8"), id="image's entrypoint, flags in the command"
    ),
    pytest.param(("vllm", "serve", "m", "--max-num-seqs=8"), (), id="all in the entrypoint"),
    pytest.param(("vllm", "serve", "m", "--max-num-seqs=8"), ("--seed", "1"), id="flags in both"),
    pytest.param((), ("vllm", "serve", "m", "--max_num_seqs", "8"), id="all in the command"),
    pytest.param(API_SERVER, ("--model", "m", "--max-num-seqs", "8"), id="module"),
    pytest.param(("/usr/bin/tini", "--", "vllm", "serve"), ("m", "--max-num-seqs", "8"), id="tini"),
    pytest.param(
        ("/opt/nvidia/nvidia_entrypoint.sh",), ("vllm", "serve", "m", "--max-num-seqs", "8"), id="hands over"
    ),
    pytest.param((), ("numactl", "-N", "0", *API_SERVER, "--model=m", "--max-num-seqs", "8"), id="numactl"),
]


def changed(
    entrypoint: tuple[str, ...], command: tuple[str, ...], setting: dict[str, Value]
) -> dict[str, Value]:
    there = serve(container(*command, entrypoint=entrypoint)).with_setting(setting)
    left = [word for word in there.entrypoint if word]
    return dict(serve(container(*there.command, entrypoint=left)).setting)


@pytest.mark.parametrize(("entrypoint", "command"), FORMS)
def test_finds_flags_in_entrypoint_and_command(entrypoint: tuple[str, ...], command: tuple[str, ...]) -> None:
    setting = serve(container(*command, entrypoint=entrypoint)).setting

    assert setting["model"] == "m"
    assert setting["max_num_seqs"] == 8


@pytest.mark.parametrize(("entrypoint", "command"), FORMS)
def test_only_the_flags_that_change_are_touched(
    entrypoint: tuple[str, ...], command: tuple[str, ...]
) -> None:
    before = container(*command, entrypoint=entrypoint)
    setting = serve(before).setting
    there = serve(before).with_setting({**setting, "max_num_seqs": 16})
    old = [*entrypoint, *command]
    new = [*there.entrypoint, *there.command] if entrypoint else there.command

    assert changed(entrypoint, command, {**setting, "max_num_seqs": 16}) == {**setting, "max_num_seqs": 16}
    assert len(new) == len(old)
    assert [word for word in new if word not in old] == [
        next(word.replace("8", "16") for word in old if word.endswith("8"))
    ]


@pytest.mark.parametrize(("entrypoint", "command"), FORMS)
def test_the_same_setting_changes_no_argument(entrypoint: tuple[str, ...], command: tuple[str, ...]) -> None:
    before = container(*command, entrypoint=entrypoint)

    for setting in (serve(before).setting, {}):
        there = serve(before).with_setting(setting)
        assert (there.entrypoint, there.command) == (list(entrypoint) or [""], list(command))


def test_the_entrypoint_keeps_its_arguments_when_a_flag_is_added() -> None:
    before = container("m", entrypoint=("vllm", "serve"))
    there = serve(before).with_setting({"model": "m", "seed": 3})

    assert (there.entrypoint, there.command) == (["vllm", "serve"], ["m", "--seed", "3"])


def test_removes_knobs_that_the_setting_does_not_name() -> None:
    assert serve(container("m", "--seed", "3", "--block-size=16")).with_setting({"seed": 3}).command == [
        "m",
        "--seed",
        "3",
    ]


def test_a_masked_value_is_unchanged() -> None:
    before = container("m", "--hf-overrides", '{"token": "x"}')

    assert (
        serve(before).with_setting({"model": "m", "hf_overrides": '{"token": "***"}'}).command
        == before["Config"]["Cmd"]
    )


def test_another_port_is_one_more_change() -> None:
    command = container("m", "--port", "8000")

    assert serve(command).with_setting({}, port=8101).command == ["m", "--port", "8101"]
    assert serve(command).with_setting({"model": "m", "seed": 1}, port=8101).command == [
        "m",
        "--port",
        "8101",
        "--seed",
        "1",
    ]


@pytest.mark.parametrize(
    ("entrypoint", "command", "why"),
    [
        pytest.param(("/bin/sh", "-c"), ("vllm serve m",), "starts a shell", id="shell form"),
        pytest.param((), ("bash", "-lc", "exec vllm serve $MODEL"), "starts a shell", id="bash -lc"),
        pytest.param(("bash", "-c"), ("vllm", "serve"), "starts a shell", id="words that bash would drop"),
        pytest.param((), (), "neither entrypoint nor command", id="nothing"),
        pytest.param((), ("vllm", "bench"), "starts a server only if `serve` follows", id="not a server"),
    ],
)
def test_a_command_that_cannot_be_edited_safely_is_refused(
    entrypoint: tuple[str, ...], command: tuple[str, ...], why: str
) -> None:
    with pytest.raises(FlagError, match=why):
        serve(container(*command, entrypoint=entrypoint)).with_setting({"seed": 1})


# The file of --config.

WITH_FILE = container("m", "--config", "serve.yaml", "--seed", "1")
YAML = "max-num-seqs: 64\nseed: 7\nport: 9000\nenforce-eager: true\napi-key: k\n"


def files(path: str) -> str | None:
    return {"/vllm-workspace/serve.yaml": YAML}.get(path)


def test_command_line_overrides_the_config_file() -> None:
    assert serve(WITH_FILE, files).setting == {
        "model": "m",
        "config": "serve.yaml",
        "max_num_seqs": 64,
        "enforce_eager": True,
        "seed": 1,
    }


def test_reads_address_and_key_from_the_file() -> None:
    from_file = serve(WITH_FILE, files)
    assert (from_file.host, from_file.port, from_file.api_key) == ("", 9000, "k")
    assert serve(container("m", "--config", "serve.yaml", "--port", "8000"), files).port == 8000


def test_a_knob_of_the_file_is_changed_by_a_flag() -> None:
    setting = {**serve(WITH_FILE, files).setting, "max_num_seqs": 32, "enforce_eager": False}

    assert serve(WITH_FILE, files).with_setting(setting).command == (
        ["m", "--config", "serve.yaml", "--seed", "1", "--max-num-seqs", "32", "--no-enforce-eager"]
    )


def test_flags_of_the_file_are_not_written_out_again() -> None:
    assert (
        serve(WITH_FILE, files).with_setting(serve(WITH_FILE, files).setting).command
        == WITH_FILE["Config"]["Cmd"]
    )


@pytest.mark.parametrize(
    "setting", [{"seed": 1, "enforce_eager": True}, {"max_num_seqs": None, "enforce_eager": 1}]
)
def test_a_knob_of_the_file_cannot_be_removed(setting: dict[str, Value]) -> None:
    with pytest.raises(FlagError, match="max_num_seqs stands in the --config file"):
        serve(WITH_FILE, files).with_setting(setting)


def test_refuses_to_change_flags_of_an_unreadable_file() -> None:
    hidden = serve(WITH_FILE, lambda _: None)

    assert hidden.setting == {"model": "m", "config": "serve.yaml", "seed": 1}
    with pytest.raises(FlagError, match=r"/vllm-workspace/serve\.yaml cannot be read"):
        hidden.with_setting({"seed": 1})


def test_a_knob_in_the_file_and_twice_on_the_command_line_is_changed_at_its_last_occurrence() -> None:
    before = container("m", "--config", "serve.yaml", "--seed", "1", "--seed", "2")

    assert serve(before, files).with_setting({**serve(before, files).setting, "seed": 7}).command == (
        ["m", "--config", "serve.yaml", "--seed", "7"]
    )


# Flags in the environment.

ENV = ["PATH=/usr/bin", "SM_VLLM_MODEL=m", "SM_VLLM_MAX_NUM_SEQS=8", "SM_VLLM_ENFORCE_EAGER="]
FROM_ENV = container(entrypoint=SAGEMAKER, config={"Env": ENV})


def test_flags_are_read_from_the_environment_where_the_image_does_so() -> None:
    assert serve(FROM_ENV).setting == {"model": "m", "max_num_seqs": 8, "enforce_eager": True}
    assert serve(FROM_ENV).port == 8080


def test_flags_of_the_environment_are_changed_there() -> None:
    setting: dict[str, Value] = {"model": "m", "max_num_seqs": 16, "enable_prefix_caching": False}
    there = serve(FROM_ENV).with_setting(setting)

    assert there.env == [
        "PATH=/usr/bin",
        "SM_VLLM_MODEL=m",
        "SM_VLLM_MAX_NUM_SEQS=16",
        "SM_VLLM_NO_ENABLE_PREFIX_CACHING=",
    ]
    assert there.entrypoint == list(SAGEMAKER)
    assert there.command == []


def test_the_same_setting_changes_no_environment_line() -> None:
    assert serve(FROM_ENV).with_setting(serve(FROM_ENV).setting).env == ENV
    assert serve(container("m")).with_setting({"max_num_seqs": 9}).env == ["PATH=/usr/bin"]


def test_another_port_goes_into_the_environment_too() -> None:
    assert serve(FROM_ENV).with_setting({}, port=8101).env == [*ENV, "SM_VLLM_PORT=8101"]
    moved = container(entrypoint=SAGEMAKER, config={"Env": serve(FROM_ENV).with_setting({}, port=8101).env})
    assert serve(moved).port == 8101


def test_several_values_do_not_fit_into_one_variable() -> None:
    with pytest.raises(FlagError, match="takes one value only"):
        serve(FROM_ENV).with_setting({**serve(FROM_ENV).setting, "cudagraph_capture_sizes": "1 2 4"})


def test_the_key_may_come_from_the_environment() -> None:
    assert serve(container("m", config={"Env": ["VLLM_API_KEY=k"]})).api_key == "k"
    assert serve(recorded()).api_key == "sekrit"


# Any setting.

_VALUES = st.integers(1, 999) | st.booleans() | st.sampled_from(["fp8", "auto", '{"a": 1}'])
_SETTINGS = st.dictionaries(st.sampled_from(["max_num_seqs", "x_y", "block_size", "z"]), _VALUES)


@given(st.sampled_from([form.values for form in FORMS]), _SETTINGS)
def test_a_written_setting_is_read_back(
    forms: tuple[tuple[str, ...], tuple[str, ...]], flags: dict[str, Value]
) -> None:
    setting: dict[str, Value] = {"model": "m", **flags}

    assert changed(*forms, setting) == setting


@given(_SETTINGS)
def test_a_setting_written_to_the_environment_is_read_back(flags: dict[str, Value]) -> None:
    setting: dict[str, Value] = {"model": "m", **flags}
    env = serve(FROM_ENV).with_setting(setting).env

    assert serve(container(entrypoint=SAGEMAKER, config={"Env": env})).setting == setting


def test_argv_starts_with_the_server() -> None:
    script = container("vllm", "serve", "m", entrypoint=("/entrypoint.sh",))

    assert serve(script).argv == ("vllm", "serve", "m")
