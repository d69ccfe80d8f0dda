"""Reading the YAML of vLLM's --config."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flettner.vllm_facts.config_file import config_path, parse_config
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import parse_setting
from flettner.vllm_facts.values import Value

FILE = """\
model: org/model
max-num-seqs: 64
gpu_memory_utilization: 0.85
max-model-len: 8k
enforce-eager: true
enable-prefix-caching: false
enable_chunked_prefill: false
served-model-name: [a, b]
cudagraph-capture-sizes: []
speculative-config:
  method: ngram
  num_speculative_tokens: 3
seed: -1
"""


def read(text: str) -> dict[str, Value]:
    return parse_setting(["vllm", "serve", *parse_config(text, "c.yaml")])


def test_parses_a_file_like_vllm() -> None:
    assert read(FILE) == {
        "model": "org/model",
        "max_num_seqs": 64,
        "gpu_memory_utilization": 0.85,
        "max_model_len": 8000,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "served_model_name": "a b",
        "speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}',
        "seed": -1,
    }


def test_drops_a_disabled_flag_with_an_underscore_like_vllm() -> None:
    assert read("enable_prefix_caching: false") == {}


def test_omits_a_disabled_flag_without_a_negative_form() -> None:
    assert read("disable-log-stats: false") == {}


def test_an_empty_file_sets_nothing() -> None:
    assert parse_config("# nothing yet\n", "c.yaml") == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("a: [1", "line 1 is not YAML|line 2 is not YAML", id="broken"),
        pytest.param("- a\n- b\n", "no `flag: value` lines", id="a list"),
        pytest.param("just words", "no `flag: value` lines", id="text"),
    ],
)
def test_a_file_that_holds_no_flags_is_refused(text: str, why: str) -> None:
    with pytest.raises(FlagError, match=why):
        parse_config(text, "c.yaml")


@pytest.mark.parametrize(
    ("argv", "path"),
    [
        (["vllm", "serve", "--config", "/c.yaml"], "/c.yaml"),
        (["vllm", "serve", "--config=/c.yaml"], ""),  # vLLM ignores this form
        (["vllm", "serve", "m"], ""),
    ],
)
def test_finds_the_config_file_flag_with_a_separate_value(argv: list[str], path: str) -> None:
    assert config_path(argv) == path


@pytest.mark.parametrize("flags", [["--config"], ["--config", "a.yaml", "--config", "b.yaml"]])
def test_a_config_flag_that_vllm_would_refuse_is_refused(flags: list[str]) -> None:
    with pytest.raises(FlagError, match=r"--config (is|has)"):
        config_path(["vllm", "serve", *flags])


_KNOBS = st.sampled_from(["max-num-seqs", "block-size", "seed", "max_num_partial_prefills", "watermark"])


@given(st.dictionaries(_KNOBS, st.integers(-5, 10**6) | st.floats(0.001, 1.0)))
def test_numbers_round_trip(entries: dict[str, Value]) -> None:
    written = {key.replace("-", "_"): value for key, value in entries.items()}

    assert read(yaml.safe_dump(entries)) == written
