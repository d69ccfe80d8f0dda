"""The simulated daemons log nothing."""

from collections.abc import Iterator

import pytest
import structlog

from tests.simulation.__main__ import quiet


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    quiet()
    yield
    structlog.reset_defaults()
