"""The documentation builds; no link is broken and no page is orphaned."""

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.timeout(600)
def test_builds_without_broken_links_or_orphaned_pages(
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
    assert 'id="flettnerdown"' in runbook  # the fragment of an alert's runbook_url
