import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from flettner.agent.config.listen import Role
from tests.support.console_data import Scene, scenery
from tests.support.console_site import Site, site

CHROMIUM = "/usr/bin/chromium"
ROOT = ("--no-sandbox",)  # Chromium's own sandbox does not work for root

PATIENCE_MS = 30_000  # for any condition: the machine may be busy

Opened = Callable[..., Page]
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For modules without async tests: Playwright's own event loop runs in this thread until it is closed."""
    with sync_playwright() as playwright:
        args = ROOT if os.geteuid() == 0 else ()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(args))
        yield browser
        browser.close()


@pytest.fixture
def scene() -> Scene:
    """`chat` has an open suggestion, `code` a rollout."""
    return scenery(targets=2, hours=2)


@pytest.fixture
def place(scene: Scene, tmp_path: Path) -> Iterator[Site]:
    with site(scene, tmp_path) as place:
        yield place


@pytest.fixture
def opened(browser: Browser, place: Site) -> Iterator[Opened]:
    """Opens a page of the console in a tab of its own; its console errors fail the test."""
    contexts, complaints = [], []

    def opened(
        path: str,
        role: Role | None = "operator",
        *,
        width: int = 1280,
        dark: bool = False,
        lossy: bool = False,
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 800},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            accept_downloads=True,
        )
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        if not lossy:  # Chromium logs expected request failures
            page.on(
                "console",
                lambda message: complaints.append(message.text) if message.type == "error" else None,
            )
        if role is not None:
            page.add_init_script(
                "if (!sessionStorage.getItem('asked'))"
                f" sessionStorage.setItem('flettner.token', {place.token[role]!r});"
                "sessionStorage.setItem('asked', '1')"
            )
        page.goto(f"{place.url}/#{path}")
        page.wait_for_selector("h1")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
