"""Where the flags of a container stand, and changing them there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.docker.command import api_key_in, argv_of, place_in, setting_in, with_command, with_environment
from tests.support.docker_documents import container, recorded
from vllm_facts.errors import FlagError
from vllm_facts.values import Value

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
    there, flags = with_command(container(*command, entrypoint=entrypoint), setting)
    return setting_in(container(*flags, entrypoint=[] if there == [""] else there))


@pytest.mark.parametrize(("entrypoint", "command"), FORMS)
def test_flags_are_found_wherever_they_stand(entrypoint: tuple[str, ...], command: tuple[str, ...]) -> None:
    setting = setting_in(container(*command, entrypoint=entrypoint))

    assert setting["model"] == "m"
    assert setting["max_num_seqs"] == 8


@pytest.mark.parametrize(("entrypoint", "command"), FORMS)
def test_only_the_flags_that_change_are_touched(
    entrypoint: tuple[str, ...], command: tuple[str, ...]
) -> None:
    before = container(*command, entrypoint=entrypoint)
    setting = setting_in(before)
    there, flags = with_command(before, {**setting, "max_num_seqs": 16})
    old = [*entrypoint, *command]
    new = [*there, *flags] if entrypoint else flags

    assert changed(entrypoint, command, {**setting, "max_num_seqs": 16}) == {**setting, "max_num_seqs": 16}
    assert len(new) == len(old)
    assert [word for word in new if word not in old] == [
        next(word.replace("8", "16") for word in old if word.endswith("8"))
    ]


@pytest.mark.parametrize(("entrypoint", "command"), FORMS)
def test_a_setting_as_it_is_changes_no_word(entrypoint: tuple[str, ...], command: tuple[str, ...]) -> None:
    before = container(*command, entrypoint=entrypoint)

    for setting in (setting_in(before), {}):
        assert with_command(before, setting) == (list(entrypoint) or [""], list(command))


def test_the_entrypoint_keeps_its_words_when_a_flag_is_added() -> None:
    before = container("m", entrypoint=("vllm", "serve"))

    assert with_command(before, {"model": "m", "seed": 3}) == (["vllm", "serve"], ["m", "--seed", "3"])


def test_knobs_that_the_setting_does_not_name_are_taken_out() -> None:
    assert with_command(container("m", "--seed", "3", "--block-size=16"), {"seed": 3})[1] == [
        "m",
        "--seed",
        "3",
    ]


def test_a_value_that_was_masked_stays_as_it_is() -> None:
    before = container("m", "--hf-overrides", '{"token": "x"}')

    assert (
        with_command(before, {"model": "m", "hf_overrides": '{"token": "***"}'})[1] == before["Config"]["Cmd"]
    )


def test_another_port_is_one_more_change() -> None:
    command = container("m", "--port", "8000")

    assert with_command(command, {}, port=8101)[1] == ["m", "--port", "8101"]
    assert with_command(command, {"model": "m", "seed": 1}, port=8101)[1] == [
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
        pytest.param((), ("vllm", "bench"), "without `serve`", id="not a server"),
    ],
)
def test_what_cannot_be_edited_safely_is_refused(
    entrypoint: tuple[str, ...], command: tuple[str, ...], why: str
) -> None:
    with pytest.raises(FlagError, match=why):
        setting_in(container(*command, entrypoint=entrypoint))


# The file of --config.

WITH_FILE = container("m", "--config", "serve.yaml", "--seed", "1")
YAML = "max-num-seqs: 64\nseed: 7\nport: 9000\nenforce-eager: true\napi-key: k\n"


def files(path: str) -> str | None:
    return {"/vllm-workspace/serve.yaml": YAML}.get(path)


def test_the_command_line_wins_over_the_file() -> None:
    assert setting_in(WITH_FILE, files) == {
        "model": "m",
        "config": "serve.yaml",
        "max_num_seqs": 64,
        "enforce_eager": True,
        "seed": 1,
    }


def test_the_file_says_where_it_listens_and_what_key_it_wants() -> None:
    assert place_in(WITH_FILE, files) == ("", 9000)
    assert place_in(container("m", "--config", "serve.yaml", "--port", "8000"), files) == ("", 8000)
    assert api_key_in(WITH_FILE, files) == "k"


def test_a_knob_of_the_file_is_changed_by_a_flag() -> None:
    setting = {**setting_in(WITH_FILE, files), "max_num_seqs": 32, "enforce_eager": False}

    assert with_command(WITH_FILE, setting, files=files)[1] == (
        ["m", "--config", "serve.yaml", "--seed", "1", "--max-num-seqs", "32", "--no-enforce-eager"]
    )


def test_flags_of_the_file_are_not_written_out_again() -> None:
    assert with_command(WITH_FILE, setting_in(WITH_FILE, files), files=files)[1] == WITH_FILE["Config"]["Cmd"]


@pytest.mark.parametrize(
    "setting", [{"seed": 1, "enforce_eager": True}, {"max_num_seqs": None, "enforce_eager": 1}]
)
def test_a_knob_of_the_file_cannot_be_taken_out(setting: dict[str, Value]) -> None:
    with pytest.raises(FlagError, match="max_num_seqs stands in the --config file"):
        with_command(WITH_FILE, setting, files=files)


def test_a_file_that_cannot_be_read_hides_flags_so_it_is_refused() -> None:
    with pytest.raises(FlagError, match=r"/vllm-workspace/serve\.yaml cannot be read"):
        setting_in(WITH_FILE, lambda _: None)


def test_a_knob_in_the_file_and_twice_on_the_line_is_changed_in_the_last_place() -> None:
    before = container("m", "--config", "serve.yaml", "--seed", "1", "--seed", "2")

    assert with_command(before, {**setting_in(before, files), "seed": 7}, files=files)[1] == (
        ["m", "--config", "serve.yaml", "--seed", "7"]
    )


# Flags in the environment.

ENV = ["PATH=/usr/bin", "SM_VLLM_MODEL=m", "SM_VLLM_MAX_NUM_SEQS=8", "SM_VLLM_ENFORCE_EAGER="]
FROM_ENV = container(entrypoint=SAGEMAKER, config={"Env": ENV})


def test_flags_are_read_from_the_environment_where_the_image_does_so() -> None:
    assert setting_in(FROM_ENV) == {"model": "m", "max_num_seqs": 8, "enforce_eager": True}
    assert place_in(FROM_ENV) == ("", 8080)


def test_flags_of_the_environment_are_changed_there() -> None:
    setting: dict[str, Value] = {"model": "m", "max_num_seqs": 16, "enable_prefix_caching": False}

    assert with_environment(FROM_ENV, setting) == [
        "PATH=/usr/bin",
        "SM_VLLM_MODEL=m",
        "SM_VLLM_MAX_NUM_SEQS=16",
        "SM_VLLM_NO_ENABLE_PREFIX_CACHING=",
    ]
    assert with_command(FROM_ENV, setting) == (list(SAGEMAKER), [])


def test_an_environment_as_it_is_changes_no_line() -> None:
    assert with_environment(FROM_ENV, setting_in(FROM_ENV)) == ENV
    assert with_environment(container("m"), {"max_num_seqs": 9}) == ["PATH=/usr/bin"]


def test_another_port_goes_into_the_environment_too() -> None:
    assert with_environment(FROM_ENV, {}, port=8101) == [*ENV, "SM_VLLM_PORT=8101"]
    moved = container(entrypoint=SAGEMAKER, config={"Env": with_environment(FROM_ENV, {}, port=8101)})
    assert place_in(moved) == ("", 8101)


def test_several_values_do_not_fit_into_one_variable() -> None:
    with pytest.raises(FlagError, match="takes one value only"):
        with_environment(FROM_ENV, {**setting_in(FROM_ENV), "cudagraph_capture_sizes": "1 2 4"})


def test_the_key_may_stand_in_the_environment() -> None:
    assert api_key_in(container("m", config={"Env": ["VLLM_API_KEY=k"]})) == "k"
    assert api_key_in(recorded()) == "sekrit"


# Whatever is asked.

_VALUES = st.integers(1, 999) | st.booleans() | st.sampled_from(["fp8", "auto", '{"a": 1}'])
_SETTINGS = st.dictionaries(st.sampled_from(["max_num_seqs", "x_y", "block_size", "z"]), _VALUES)


@given(st.sampled_from([form.values for form in FORMS]), _SETTINGS)
def test_what_is_asked_is_what_is_read(
    forms: tuple[tuple[str, ...], tuple[str, ...]], asked: dict[str, Value]
) -> None:
    setting: dict[str, Value] = {"model": "m", **asked}

    assert changed(*forms, setting) == setting


@given(_SETTINGS)
def test_what_is_asked_of_an_environment_is_what_is_read(asked: dict[str, Value]) -> None:
    setting: dict[str, Value] = {"model": "m", **asked}
    env = with_environment(FROM_ENV, setting)

    assert setting_in(container(entrypoint=SAGEMAKER, config={"Env": env})) == setting


def test_the_words_start_with_the_server() -> None:
    script = container("vllm", "serve", "m", entrypoint=("/entrypoint.sh",))

    assert argv_of(script) == ("vllm", "serve", "m")
