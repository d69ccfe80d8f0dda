"""The documentation as a whole: it is built, and every link and every page of it is found."""

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.timeout(600)
def test_the_documentation_builds_without_a_broken_link_or_a_page_that_nothing_leads_to(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", DOCS, tmp_path / "html"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "html" / "index.html").exists()
    assert (tmp_path / "html" / "decisions" / "0006-evidence-at-any-time.html").exists()
    runbook = (tmp_path / "html" / "runbook.html").read_text()
    assert 'id="trimtabdown"' in runbook  # as an alert's runbook_url ends
