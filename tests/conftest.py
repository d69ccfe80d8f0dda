"""Settings of hypothesis and xdist; with CI set, a test that is skipped fails.

Examples of hypothesis have no deadline, as other work may stall the machine. `pytest FOLDER` uses all cores;
`pytest FILE` runs in one process, which starts faster and can be debugged.
"""

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.sampling import FULL

CI = bool(os.environ.get("CI"))
settings.register_profile("sample", deadline=None, derandomize=CI, max_examples=25)
settings.register_profile("full", deadline=None, derandomize=CI)
settings.load_profile("full" if FULL else "sample")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """The workers of `--numprocesses=auto`, which is the default in pyproject.toml."""
    return (os.cpu_count() or 1) if any(Path(arg).is_dir() for arg in config.args) else 0


@pytest.hookimpl(trylast=True)  # after the shuffle
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that hold the longest tests: at its end, a run would wait for one of them."""
    if FULL:
        _allow_hours(items)
    longest_s: dict[Path, float] = {}
    for item in items:
        mark = item.get_closest_marker("timeout")
        longest_s[item.path] = max(longest_s.get(item.path, 0.0), mark.args[0] if mark else 0.0)
    items.sort(key=lambda item: -longest_s[item.path])


def _allow_hours(items: list[pytest.Item]) -> None:
    """A full run has up to fifty times the cases, with the CPU that tests with deadlines leave."""
    for item in items:
        if not {"integration", "e2e"} & set(item.path.parts):
            item.add_marker(pytest.mark.timeout(7200), append=False)


def pytest_collection_finish() -> None:
    """Spare the collector what lives as long as the run: walking it took a sixth of the CPU of unit tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, though CI is set: {report.longreprtext}"
    return report
