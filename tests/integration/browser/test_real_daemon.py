"""An operator session in the console of a real daemon, with real Envoy and simulated servers under load."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from flettner.simulator.traffic import TrafficGenerator
from tests.integration.browser.conftest import PATIENCE_MS
from tests.support.config_builder import SiteConfig
from tests.support.loop_thread import LoopThread, loop_thread
from tests.support.rig import PATIENCE_S, Rig, lost

pytestmark = pytest.mark.smoke

ENDLESS = ((50, 1_000_000, 1.0),)  # a canary at half of the traffic without an end


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    """For the site, as Playwright's event loop runs in the main thread."""
    with loop_thread(3 * PATIENCE_S) as thread:
        yield thread


@pytest.fixture
def rig(thread: LoopThread, tmp_path: Path) -> Iterator[Rig]:
    """Its daemon runs, and its one server serves."""
    rig = Rig(home=tmp_path, site_config=SiteConfig(steps=ENDLESS, at_most_s=3600.0))
    rig.prepare()
    try:
        thread.run(rig.start())
        thread.run(rig.serving())
        yield rig
    finally:
        thread.run(rig.tear_down())


@pytest.fixture
def traffic(thread: LoopThread, rig: Rig) -> Iterator[TrafficGenerator]:
    clients = rig.clients(rate=10.0)
    yield thread.run(clients.__aenter__())
    thread.run(clients.__aexit__(None, None, None))


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Console errors fail the test, except for the first request, which has no token."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    page, complaints = context.new_page(), list[str]()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    assert [text for text in complaints if "401" not in text] == []


@pytest.mark.timeout(400)
def test_a_suggestion_is_approved_watched_and_rolled_back(
    thread: LoopThread, rig: Rig, traffic: TrafficGenerator, page: Page
) -> None:
    made = thread.run(rig.propose(max_num_seqs=16))

    page.goto(f"http://127.0.0.1:{rig.api}/")
    page.get_by_label("Token").fill(rig.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#who")).to_contain_text("alice")
    expect(page.get_by_role("row", name=re.compile("^chat"))).to_contain_text("approve")
    page.get_by_role("link", name="max_num_seqs 8 → 16").click()

    expect(page.locator(".decide")).to_contain_text(made["digest"])
    decide(page, "Approve…", "for the evening", "Approve")
    page.locator(".notice").get_by_role("link", name="To the rollout").click()

    expect(page.get_by_role("heading", level=1)).to_contain_text("max_num_seqs 8 → 16")
    log = page.get_by_role("log", name="Green's log")
    expect(log).to_contain_text("Application startup complete.")
    expect(log).to_contain_text("'max_num_seqs': 16")
    expect(page.get_by_role("img", name="Traffic: blue 50 %, green 50 %")).to_be_visible()
    expect(page.locator(".figure", has_text="Exposed requests")).to_contain_text(re.compile(r"[1-9]"))

    decide(page, "Abort…", "customers complain", "Abort the rollout")
    expect(page.get_by_text("The rollout is rolled back.")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_contain_text("rolled back")
    expect(log).to_have_count(0)

    page.get_by_role("link", name="Audit", exact=True).click()
    entry = page.locator(".timeline li", has_text="customers complain").last
    expect(entry).to_contain_text("alice")
    entry.locator("summary").click()
    expect(entry).to_contain_text("Verified: its hash matches its content")

    server = thread.run(rig.consistent_server())
    thread.run(traffic.stop())
    assert (server, lost(traffic)) == ("chat-r1", [])


def decide(page: Page, what: str, text: str, confirm: str) -> None:
    page.get_by_role("button", name=what).click()
    page.get_by_role("dialog").get_by_role("textbox").fill(text)
    page.get_by_role("dialog").get_by_role("button", name=confirm, exact=True).click()
