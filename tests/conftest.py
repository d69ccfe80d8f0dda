"""Settings of hypothesis; with CI set, a test that is skipped fails.

Examples of hypothesis have no deadline, as other work may stall the machine.
"""

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.support.sampling import FULL

CI = bool(os.environ.get("CI"))
settings.register_profile("sample", deadline=None, derandomize=CI, max_examples=25)
settings.register_profile("full", deadline=None, derandomize=CI)
settings.load_profile("full" if FULL else "sample")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, though CI is set: {report.longreprtext}"
    return report
