"""Any response of a server is an answer that can be compared, or a failed one."""

from dataclasses import asdict
from math import isfinite
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from flettner.actuators.vllm.answers import FAILED, parse_answer
from flettner.agent.quality.comparison import compare

SCALARS = st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
LOGPROBS = st.fixed_dictionaries(
    {"tokens": st.lists(st.text(max_size=3), max_size=4) | JSON},
    optional={"token_logprobs": st.lists(st.floats() | SCALARS, max_size=4) | JSON},
)
BODIES = st.fixed_dictionaries(
    {
        "choices": st.lists(
            st.fixed_dictionaries(
                {"text": st.text(max_size=30) | JSON, "finish_reason": SCALARS, "logprobs": LOGPROBS | JSON}
            ),
            max_size=2,
        )
    },
    optional={"usage": st.dictionaries(st.just("completion_tokens"), SCALARS, max_size=1) | JSON},
)


def answer(**choice: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    return {
        "choices": [{"text": " so", "finish_reason": "stop", **choice}],
        "usage": {"completion_tokens": 1},
    }


@pytest.mark.parametrize("body", [None, [], {}, {"choices": []}, {"choices": [{}]}, {"error": "no"}, "text"])
def test_a_body_without_an_answer_is_a_failed_answer(body: object) -> None:
    assert parse_answer(body) == FAILED


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {},
        {"tokens": [" so"], "token_logprobs": [None]},
        {"tokens": [" so"], "token_logprobs": [float("-inf")]},
        {"tokens": [" so"], "token_logprobs": [10**400]},
        {"tokens": [" so", " it"], "token_logprobs": [-0.5]},
    ],
)
def test_incomplete_log_probabilities_are_left_out(logprobs: object) -> None:
    parsed = parse_answer(answer(logprobs=logprobs))

    assert (parsed.text, parsed.length, parsed.tokens, parsed.logprobs) == (" so", 1, (), ())


@given(st.lists(st.tuples(*[BODIES | JSON] * 3), min_size=1, max_size=4))
def test_any_answers_can_be_compared_and_serialised(bodies: list[tuple[Any, Any, Any]]) -> None:
    blue, again, green = ([parse_answer(body) for body in side] for side in zip(*bodies, strict=True))

    comparison = compare(blue, again, green)

    assert all(isfinite(logprob) for answer in green for logprob in answer.logprobs)
    assert rfc8785.dumps(asdict(comparison))
    assert compare(blue, blue, blue).ok
