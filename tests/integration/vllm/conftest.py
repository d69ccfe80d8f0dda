"""One interpreter of vLLM for all tests here."""

from collections.abc import Iterator

import pytest

from tests.support.vllm_interpreter import Ask, vllm_interpreter


@pytest.fixture(scope="session")
def ask() -> Iterator[Ask]:
    with vllm_interpreter() as ask:
        yield ask
