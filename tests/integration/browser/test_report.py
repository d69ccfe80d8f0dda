"""The page of `flettner report`, looked at and printed by a browser."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.integration.browser.test_looking import serious
from tests.unit.cli.test_report import promote_in_virtual_time, write_page_with_charts

A4 = 718  # pixels between the margins


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a promoted change."""
    folder = tmp_path_factory.mktemp("s")
    with ThreadPoolExecutor(1) as other:  # this thread has the event loop of Playwright
        other.submit(promote_in_virtual_time, folder).result()
    page = folder / "chat-1.html"
    page.write_text(write_page_with_charts(folder), encoding="utf-8")
    return page


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": A4, "height": 900})
    page.goto(report.as_uri())
    yield page
    page.close()


def test_it_is_accessible_and_has_its_charts(page: Page) -> None:
    expect(page.get_by_role("heading", name="Change chat-1 of chat")).to_be_visible()
    expect(page.locator("svg").first).to_be_visible()
    assert serious(page) == []


def test_it_prints_as_a_pdf_of_few_pages_without_cut_lines(page: Page) -> None:
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= A4
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"

    pdf = page.pdf(format="A4")

    assert pdf.startswith(b"%PDF-")
    assert 1 <= len(re.findall(rb"/Type */Page\b(?!s)", pdf)) <= 6
