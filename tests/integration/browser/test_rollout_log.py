"""The log of green on the page of its rollout."""

from playwright.sync_api import expect

from tests.integration.browser.conftest import Opened
from tests.support.console_data import Scene
from tests.support.console_site import Site

ROLLOUT = "/rollouts/code-o3"
LONGER_MS = 4000  # than the interval of log requests


def test_shows_new_log_lines_of_green_during_a_rollout(opened: Opened, scene: Scene, place: Site) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\">"
    scene.targets()["code"].logs["code-r1"] = (*(f"loading shard {number}" for number in range(39)), evil)
    page = opened(ROLLOUT)
    log = page.get_by_role("log", name="Green's log")

    expect(log).to_contain_text(evil)
    assert page.evaluate("document.querySelectorAll('main img').length") == 0
    assert log.evaluate(
        "pre => pre.scrollTop > 0 && pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4"
    )
    log.evaluate("pre => { pre.scrollTop = 0; }")
    place.change(lambda: scene.targets()["code"].logs.update({"code-r1": ("capturing graphs",) * 40}))
    expect(log).to_contain_text("capturing graphs")
    assert log.evaluate("pre => pre.scrollTop") == 0


def test_shows_why_a_log_cannot_be_read_and_recovers(opened: Opened, scene: Scene, place: Site) -> None:
    scene.targets()["code"].unreadable = "docker: no Engine answers"
    page = opened(ROLLOUT, "viewer")
    section = page.get_by_role("region", name="Green's log")

    expect(section).to_contain_text("It cannot be read: docker: no Engine answers")
    expect(section.get_by_role("log")).to_have_count(0)

    def mended() -> None:
        scene.targets()["code"].unreadable = ""
        scene.targets()["code"].logs["code-r1"] = ("serving",)

    place.change(mended)
    expect(section.get_by_role("log")).to_have_text("serving")


def test_requests_no_log_of_an_ended_rollout(opened: Opened, scene: Scene, place: Site) -> None:
    scene.targets()["code"].logs["code-r1"] = ("serving",)
    page = opened(ROLLOUT)
    expect(page.get_by_role("log")).to_have_text("serving")

    def over() -> None:
        scene.target = "code"
        scene.settle(promoted=True)
        scene.record("Promoted")

    place.change(over)
    expect(page.get_by_role("log")).to_have_count(0)
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.wait_for_timeout(LONGER_MS)

    assert not [url for url in urls if url.endswith("/log")]


def test_a_hidden_page_requests_no_log(opened: Opened, scene: Scene) -> None:
    scene.targets()["code"].logs["code-r1"] = ("serving",)
    page = opened(ROLLOUT)
    expect(page.get_by_role("log")).to_have_text("serving")
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true})")
    page.wait_for_timeout(500)  # for requests in flight
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.wait_for_timeout(LONGER_MS)

    assert not [url for url in urls if "/v1/rollouts/" in url]
