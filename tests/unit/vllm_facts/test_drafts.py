"""Changes of speculative decoding that keep its method: what they are, and what they are not."""

import pytest

from flettner.vllm_facts.drafts import find_flags, keeps_method, set_count
from flettner.vllm_facts.values import Setting, Value

EAGLE = '{"method": "eagle3", "model": "org/head", "num_speculative_tokens": 4}'


@pytest.mark.parametrize(
    ("knob", "now", "wanted", "keeps"),
    [
        pytest.param("speculative_config", EAGLE, EAGLE.replace("4", "2"), True, id="fewer"),
        pytest.param("speculative_config", EAGLE, None, True, id="off"),
        pytest.param("speculative_config", EAGLE, EAGLE.replace("4", "0"), False, id="no number"),
        pytest.param("speculative_config", EAGLE, EAGLE.replace("4", "true"), False, id="a truth value"),
        pytest.param("speculative_config", EAGLE, EAGLE.replace("4", "900"), False, id="too many"),
        pytest.param("speculative_config", EAGLE, EAGLE.replace("head", "other"), False, id="another model"),
        pytest.param("speculative_config", EAGLE, EAGLE.replace("{", '{"seed": 1, '), False, id="more keys"),
        pytest.param("speculative_config", None, EAGLE, False, id="on"),
        pytest.param("speculative_config", "eagle", EAGLE, False, id="the present one cannot be read"),
        pytest.param("speculative_config.num_speculative_tokens", 4, 2, True, id="dotted"),
        pytest.param("speculative_config.model", "org/head", "org/other", False, id="a dotted model"),
        pytest.param("spec_method", "eagle3", None, True, id="a flag of its own is removed"),
        pytest.param("spec_method", "eagle3", "mtp", False, id="another method"),
        pytest.param("quantization", "fp8", None, False, id="another flag"),
    ],
)
def test_what_is_loaded_stays(knob: str, now: Value, wanted: Value, keeps: bool) -> None:
    assert keeps_method(knob, now, wanted) is keeps


@pytest.mark.parametrize(
    ("setting", "change"),
    [
        ({"spec_method": "ngram", "spec_tokens": 4}, {"spec_tokens": 2}),
        ({"speculative_config.num_speculative_tokens": 4}, {"speculative_config.num_speculative_tokens": 2}),
        ({"speculative_config": EAGLE}, {"speculative_config": EAGLE.replace("4", "2")}),
        ({"speculative_config": '{"method": "mtp"}'}, {}),
        ({"max_num_seqs": 4}, {}),
    ],
)
def test_the_number_is_changed_where_it_stands(setting: Setting, change: Setting) -> None:
    assert set_count(setting, 2) == change


def test_all_its_flags_are_found() -> None:
    setting: Setting = {"spec_tokens": 3, "speculative_config.method": "mtp", "spec_model": None, "seed": 1}

    assert find_flags(setting) == ("spec_tokens", "speculative_config.method")
