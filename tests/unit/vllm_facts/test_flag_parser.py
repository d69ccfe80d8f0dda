"""Reading and editing vLLM command lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.primitives.address import Address
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import (
    edit_flags,
    find_secrets,
    insert_file_flags,
    parse_address,
    parse_setting,
)
from flettner.vllm_facts.values import Value

SERVE = ["vllm", "serve", "org/model"]


@pytest.mark.parametrize(
    ("flags", "setting"),
    [
        pytest.param(["--max-num-seqs", "2"], {"max_num_seqs": 2}, id="number"),
        pytest.param(["--max_num_seqs=2"], {"max_num_seqs": 2}, id="underscores, joined"),
        pytest.param(["--max-num-seqs", "2", "--max_num_seqs=4"], {"max_num_seqs": 4}, id="the last wins"),
        pytest.param(["--gpu-memory-utilization", "0.90"], {"gpu_memory_utilization": 0.9}, id="float"),
        pytest.param(["--seed", "-1"], {"seed": -1}, id="negative"),
        pytest.param(["--enforce-eager"], {"enforce_eager": True}, id="switch on"),
        pytest.param(["--no-enable-prefix-caching"], {"enable_prefix_caching": False}, id="switch off"),
        pytest.param(["--enforce-eager", "--no-enforce-eager"], {"enforce_eager": False}, id="on, then off"),
        pytest.param(["--max-model-len", "8k"], {"max_model_len": 8000}, id="decimal size"),
        pytest.param(["--max-model-len", "8K"], {"max_model_len": 8192}, id="binary size"),
        pytest.param(["--max-num-batched-tokens", "25.6k"], {"max_num_batched_tokens": 25600}, id="25.6k"),
        pytest.param(
            ["--max-num-batched-tokens", "1.5K"], {"max_num_batched_tokens": "1.5K"}, id="not a size"
        ),
        pytest.param(["--max-num-seqs", "8k"], {"max_num_seqs": "8k"}, id="a count is no size"),
        pytest.param(
            ["-tp", "2", "-pp=3"], {"tensor_parallel_size": 2, "pipeline_parallel_size": 3}, id="-tp"
        ),
        pytest.param(["-O3"], {"optimization_level": 3}, id="-O3"),
        pytest.param(["-O", "2"], {"optimization_level": 2}, id="-O 2"),
        pytest.param(["-O=1"], {"optimization_level": 1}, id="-O=1"),
        pytest.param(["-q", "fp8", "-ep"], {"quantization": "fp8", "enable_expert_parallel": True}, id="-q"),
        pytest.param(["-cc.mode=3"], {"compilation_config.mode": 3}, id="dotted"),
        pytest.param(["--eplb-config.use_async", "false"], {"eplb_config.use_async": False}, id="dotted off"),
        pytest.param(["-cc.passes+", "a,b"], {"compilation_config.passes+": "a,b"}, id="dotted, one more"),
        pytest.param(["--cuda-graph-sizes", "1", "2"], {"cuda_graph_sizes": "1 2"}, id="several of old"),
        pytest.param(
            ["--kv-cache-memory", "2G"], {"kv_cache_memory_bytes": 2**31}, id="short name of vLLM's log"
        ),
        pytest.param(
            ["--cudagraph-capture-sizes", "1", "2"], {"cudagraph_capture_sizes": "1 2"}, id="several"
        ),
        pytest.param(["--served-model-name", "7"], {"served_model_name": "7"}, id="a name stays text"),
        pytest.param(["--brand-new-switch"], {"brand_new_switch": True}, id="unknown switch"),
        pytest.param(["--brand-new", "x", "--port", "1"], {"brand_new": "x"}, id="unknown flag"),
        pytest.param(["--speculative-config", '{"a": 1}'], {"speculative_config": '{"a": 1}'}, id="JSON"),
        pytest.param(
            ["--api-key", "k", "--hf-token=t", "--host", "::", "--port", "1"], {}, id="place, secrets"
        ),
    ],
)
def test_parses_a_command_line(flags: list[str], setting: dict[str, Value]) -> None:
    assert parse_setting([*SERVE, *flags]) == {"model": "org/model", **setting}


@pytest.mark.parametrize(
    "head",
    [
        ["vllm", "serve"],
        ["/venv/bin/python3.11", "/venv/bin/vllm", "serve"],
        ["python", "-m", "vllm.entrypoints.openai.api_server"],
        ["python3", "-u", "-X", "dev", "-m", "flettner.simulator.server"],
        ["python", "stub.py"],
        ["env", "HF_HUB_OFFLINE=1", "vllm", "serve"],
        ["numactl", "--cpunodebind=0", "/bin/vllm", "serve"],
        ["sudo", "-E", "nohup", "vllm", "serve"],
        ["uv", "run", "--with", "vllm", "vllm", "serve"],
        ["timeout", "60", "python3", "-m", "vllm.entrypoints.openai.api_server"],
        ["/usr/local/bin/serve-model"],
        ["serve-model", "serve"],
    ],
    ids=" ".join,
)
def test_parses_every_way_to_start_a_server(head: list[str]) -> None:
    argv = [*head, "--max-num-seqs", "2"]

    assert parse_setting(argv) == {"max_num_seqs": 2}
    assert edit_flags(argv, {"max_num_seqs": 4}) == [*head, "--max-num-seqs", "4"]


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["sh", "-c", "vllm serve m --max-num-seqs 2"], "starts a shell"),
        (["env", "A=1", "bash", "start.sh"], "starts a shell"),
        (["vllm", "bench", "serve"], "only if `serve` follows directly"),
        (["python", "-c", "import vllm"], "python -c"),
        (["python", "-u"], "no module and no file"),
        (["python", "-m", "vllm.entrypoints.api_server", "--model", "m"], "a demonstration"),
        (["docker", "run", "vllm/vllm-openai", "--model", "m"], "belongs to no flag"),
        ([*SERVE, "another"], "belongs to no flag"),
        ([*SERVE, "--", "x"], "cannot be read"),
        ([*SERVE, "-=5"], "cannot be read"),
        ([*SERVE, "—enforce-eager"], "begins with a long dash: write --enforce-eager$"),
        ([*SERVE, "--enforce-eager=maybe"], "write --enforce-eager or leave it out$"),
        (["nohup", "uv", "run", "server"], "no server is named"),
        (["env", "A=1"], "no server is named"),
        ([], "no server is named"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_an_unsafe_edit_is_refused(argv: list[str], why: str) -> None:
    with pytest.raises(FlagError, match=why):
        parse_setting(argv)


@pytest.mark.parametrize(
    ("given", "knob", "value", "plain"),
    [
        ("--enforce-eager=true", "enforce_eager", True, "--enforce-eager"),
        ("--enable_chunked_prefill False", "enable_chunked_prefill", False, "--no_enable_chunked_prefill"),
        ("--no-enforce-eager=off", "enforce_eager", True, "--enforce-eager"),
        ("--headless=0", "headless", False, ""),
    ],
)
def test_a_switch_with_a_value_is_read_and_written_without_it(
    given: str, knob: str, value: bool, plain: str
) -> None:
    argv = [*SERVE, *given.split(), "--max-num-seqs", "2"]

    assert parse_setting(argv) == {
        "model": "org/model",
        knob: value,
        f"valued_switch.{knob}": given,
        "max_num_seqs": 2,
    }
    assert edit_flags(argv, {f"valued_switch.{knob}": None}) == [
        *SERVE,
        *plain.split(),
        "--max-num-seqs",
        "2",
    ]


def test_a_switch_with_a_value_keeps_one_where_its_release_takes_it() -> None:
    argv = [*SERVE, "--enable-chunked-prefill=False", "--multi-step-stream-outputs", "true"]

    assert edit_flags(argv, {"enable_chunked_prefill": True, "multi_step_stream_outputs": False}) == [
        *SERVE,
        "--enable-chunked-prefill=true",
        "--multi-step-stream-outputs",
        "false",
    ]


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        pytest.param("--max-num-seqs 2", {"max_num_seqs": 4}, "--max-num-seqs 4", id="in place"),
        pytest.param(
            "--max_num-seqs=2 -tp 2", {"max_num_seqs": 4}, "--max_num-seqs=4 -tp 2", id="as spelled"
        ),
        pytest.param("-tp 2", {"tensor_parallel_size": 4}, "-tp 4", id="short form"),
        pytest.param("-O3", {"optimization_level": 1}, "-O1", id="-O"),
        pytest.param("--a 1 --b 2 --a=3 --c 4", {"a": 5}, "--b 2 --a=5 --c 4", id="repeated"),
        pytest.param("--a 1", {"max_num_seqs": 4}, "--a 1 --max-num-seqs 4", id="appended"),
        pytest.param("--a 1 --b 2 --a 3", {"a": None}, "--b 2", id="taken out"),
        pytest.param("--a 1", {"b": None}, "--a 1", id="nothing to take out"),
        pytest.param("--max-model-len 8k", {"max_model_len": 8000}, "--max-model-len 8k", id="already so"),
        pytest.param("--max-model-len 8k", {"max_model_len": 9000}, "--max-model-len 9000", id="size"),
        pytest.param("--enforce-eager", {"enforce_eager": False}, "--no-enforce-eager", id="off"),
        pytest.param(
            "--enforce_eager", {"enforce_eager": False}, "--no_enforce_eager", id="off, underscored"
        ),
        pytest.param("--no-async-scheduling", {"async_scheduling": True}, "--async-scheduling", id="on"),
        pytest.param("-ep", {"enable_expert_parallel": False}, "--no-enable-expert-parallel", id="short off"),
        pytest.param("--disable-log-stats", {"disable_log_stats": False}, "", id="no --no- form"),
        pytest.param("--seed 1", {"seed": -1}, "--seed -1", id="negative number"),
        pytest.param("--x 1", {"x": "-y"}, "--x=-y", id="looks like a flag"),
        pytest.param("--x", {"x": 1}, "--x 1", id="unknown switch gets a value"),
        pytest.param(
            "--served-model-name a b --x 1", {"served_model_name": "c"}, "--served-model-name c --x 1", id="n"
        ),
        pytest.param(
            "--x 1", {"cudagraph_capture_sizes": "1 2"}, "--x 1 --cudagraph-capture-sizes 1 2", id="two"
        ),
        pytest.param("-cc.mode=3", {"compilation_config.mode": 0}, "-cc.mode=0", id="dotted"),
        pytest.param("", {"eplb_config.use_async": False}, "--eplb-config.use_async false", id="dotted off"),
        pytest.param("-ac.a true", {"attention_config.a": False}, "-ac.a false", id="dotted, switched"),
        pytest.param(
            "-cc.mode=3",
            {"compilation_config.cudagraph_mode": "FULL"},
            "-cc.mode=3 -cc.cudagraph_mode FULL",
            id="part of the same spelling: vLLM takes the last spelling alone",
        ),
        pytest.param("--port 8000 --x 1", {"port": 8101}, "--port 8101 --x 1", id="the port can be set"),
        pytest.param("--api-key k --x 1", {"x": 2}, "--api-key k --x 2", id="secrets stay"),
    ],
)
def test_edit_changes_only_the_affected_words(before: str, changes: dict[str, Value], after: str) -> None:
    assert edit_flags([*SERVE, *before.split()], changes) == [*SERVE, *after.split()]


def test_replaces_the_positional_model_in_place() -> None:
    edited = edit_flags([*SERVE, "--max-num-seqs", "2"], {"model": "org/other"})

    assert edited == ["vllm", "serve", "org/other", "--max-num-seqs", "2"]


@pytest.mark.parametrize(
    "changes",
    [{"api_key": "k"}, {"--port": 1}, {"x": float("nan")}, {"model": "--x"}, {"served_model_name": "it's"}],
    ids=str,
)
def test_a_change_that_cannot_be_written_is_refused(changes: dict[str, Value]) -> None:
    with pytest.raises(FlagError):
        edit_flags(SERVE, changes)


def test_the_flags_of_a_file_come_before_those_of_the_command_line() -> None:
    argv = ["nohup", "vllm", "serve", "m", "--config", "f.yaml", "--max-num-seqs", "2"]

    both = insert_file_flags(argv, ["--max-num-seqs", "8", "--enforce-eager", "--model", "other"])

    assert both[:4] == ["nohup", "vllm", "serve", "--max-num-seqs"]
    expected = {"max_num_seqs": 2, "enforce_eager": True, "config": "f.yaml", "model": "m"}
    assert parse_setting(both) == expected


def test_a_part_of_a_json_flag_cannot_be_set_separately() -> None:
    argv = [*SERVE, "--compilation-config", '{"mode": 3}']

    with pytest.raises(FlagError, match="together with the JSON of --compilation-config"):
        edit_flags(argv, {"compilation_config.cudagraph_mode": "FULL"})
    assert edit_flags(argv, {"compilation_config.cudagraph_mode": None}) == argv


def test_the_address_is_parsed_separately() -> None:
    assert parse_address([*SERVE, "--host", "127.0.0.1", "--port=8007"]) == Address("127.0.0.1", 8007)
    assert parse_address(SERVE) == Address("", 8000)


@pytest.mark.parametrize("word", ["abc", "8.5"])
def test_a_port_that_is_no_number_is_refused(word: str) -> None:
    with pytest.raises(FlagError, match="--port"):
        parse_address([*SERVE, "--port", word])


def test_finds_secrets_at_any_position() -> None:
    argv = ["env", "HF_TOKEN=hf_x", *SERVE, "--api-key", "sk-1", "--api_key=sk-2", "--x", "sk-1", "-tp", "2"]

    assert find_secrets(argv) == ("hf_x", "sk-1", "sk-2")


def test_a_refusal_does_not_show_a_secret() -> None:
    with pytest.raises(FlagError) as refusal:
        parse_setting([*SERVE, "--api-key", "sk-1", "sk-2"])

    assert "sk-" not in str(refusal.value)


# Numbers as text read back as numbers: texts here start with a letter.
_VALUES = st.one_of(
    st.integers(-(10**15), 10**15),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
    st.from_regex(r"[a-zA-Z][ -~]*", fullmatch=True),
)
_KNOBS = st.one_of(
    st.sampled_from(
        ["seed", "max_model_len", "watermark", "tensor_parallel_size", "compilation_config.mode"]
    ),
    st.from_regex(r"x[a-z0-9_]{0,8}[a-z0-9]", fullmatch=True),
)
_WORDS = st.one_of(
    st.sampled_from(
        [
            "--seed",
            "--seed=1",
            "-tp",
            "-tp=2",
            "-O3",
            "--enforce-eager",
            "--no-enforce-eager",
            "8k",
            "-1",
            "0.5",
        ]
    ),
    st.sampled_from(
        ["--max_model-len", "--x=", "--xy", "--no-xy", "-cc.mode=1", "--served-model-name", "'", "-q"]
    ),
    st.text(max_size=6),
)


@given(st.lists(_WORDS, max_size=8), st.dictionaries(_KNOBS, _VALUES, max_size=4))
def test_edit_round_trips_and_keeps_the_rest(words: list[str], changes: dict[str, Value]) -> None:
    argv = [*SERVE, *words]
    try:
        before = parse_setting(argv)
    except FlagError:
        return
    assert edit_flags(argv, {}) == argv

    after = parse_setting(edit_flags(argv, changes))

    added = {knob: value for knob, value in changes.items() if value is not None}
    assert after == {knob: value for knob, value in before.items() if knob not in changes} | added
    assert edit_flags(edit_flags(argv, changes), changes) == edit_flags(argv, changes)


@given(st.lists(st.text(max_size=12), max_size=8))
def test_any_words_are_parsed_or_refused_without_a_crash(words: list[str]) -> None:
    assert all(isinstance(secret, str) for secret in find_secrets(words))
    try:
        parse_setting(words)
    except FlagError:
        return
