"""The performance model in the console: its law, the record of its predictions, and the panel "What if"."""

import re
from dataclasses import replace

import pytest
from playwright.sync_api import Locator, Page, expect

from flettner.agent.config.listen import Role
from flettner.agent.domain.errors import WorkerError
from tests.integration.browser.conftest import Opened
from tests.integration.browser.test_looking import Theme, serious
from tests.support.console_data import Scene
from tests.support.console_site import Site
from tests.support.learned import without_law

MODEL = "/model/chat"


def predict(page: Page, *, seqs: int | None = None, faster: int = 0) -> None:
    """`faster`: steps of the slider."""
    if seqs is not None:
        page.get_by_label("--max-num-seqs").fill(str(seqs))
    for _ in range(faster):
        page.get_by_label("Requests come").press("ArrowRight")
    page.get_by_role("button", name="Predict").click()
    expect(page.locator(".predicted table").first).to_be_visible()


def row(page: Page, title: str) -> Locator:
    return page.locator(".predicted tr").filter(has=page.get_by_role("rowheader", name=title, exact=True))


def first_number_s(cell: Locator) -> float:
    """Return the first number of a text such as `1.2 s (…)` or `340 ms (…)`."""
    value, unit = re.match(r"([\d.,]+) (ms|s|min)", cell.inner_text()).groups()  # type: ignore[union-attr]
    return float(value.replace(",", "")) * {"ms": 0.001, "s": 1.0, "min": 60.0}[unit]


def test_the_law_and_the_record_of_predictions_are_shown(opened: Opened) -> None:
    page = opened("/targets/chat")
    page.get_by_role("link", name="Model and what if").click()

    expect(page.get_by_role("heading", name="Performance model")).to_be_visible()
    law, record = (page.get_by_role("region", name=name) for name in ("Law of step time", "Predictions of"))
    expect(law).to_contain_text("500 windows, iteration log")
    expect(law).to_contain_text("each token above the knee")
    expect(record.get_by_role("row", name="Time between tokens, 90 % of requests 50 %")).to_be_visible()
    expect(record.get_by_role("row", name="chat-o2")).to_contain_text("36 ms to 45 ms, 62 ms")


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_a_change_is_predicted_with_bands_and_curves_and_touches_nothing(
    opened: Opened, scene: Scene, role: Role
) -> None:
    before, page = scene.targets()["chat"].state, opened(MODEL, role)

    predict(page, seqs=64, faster=2)

    now, then = (row(page, "TTFT, 90 %").get_by_role("cell").nth(place) for place in (0, 1))
    expect(then).to_contain_text(" to ")
    assert first_number_s(then) != first_number_s(now)
    expect(row(page, "One server carries within the objectives")).to_contain_text("up to")
    for chart in ("Time to first token", "Time between tokens"):
        figure = page.get_by_role("figure").filter(has=page.get_by_role("img", name=chart))
        figure.get_by_text("Numbers").click()
        expect(figure.get_by_role("row")).to_have_count(8)
        expect(figure.locator("path.line.then")).to_have_count(3)
    assert scene.targets()["chat"].state is before


def test_faster_requests_alone_wait_longer(opened: Opened) -> None:
    page = opened(MODEL)

    predict(page, faster=3)

    cells = row(page, "TTFT, 90 %").get_by_role("cell")
    assert first_number_s(cells.nth(1)) > first_number_s(cells.nth(0))
    expect(page.locator("path.line.then")).to_have_count(0)  # the flags are those in force


def test_an_answer_of_the_daemon_leaves_what_was_typed(opened: Opened, scene: Scene, place: Site) -> None:
    page = opened(MODEL)
    page.get_by_label("--max-num-seqs").fill("48")
    target = scene.targets()["chat"]
    assert target.model is not None
    later = replace(target.model, rows=777)
    place.change(lambda: setattr(target, "model", later))

    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    expect(page.get_by_text("777 windows")).to_be_visible()
    expect(page.get_by_label("--max-num-seqs")).to_have_value("48")


def test_a_busy_worker_is_said(opened: Opened, scene: Scene) -> None:
    scene.next_error = WorkerError("another prediction for this target is being computed")
    page = opened(MODEL, lossy=True)
    page.get_by_role("button", name="Predict").click()

    expect(page.get_by_role("alert")).to_contain_text("another prediction")
    expect(page.get_by_role("button", name="Predict")).to_be_enabled()


def test_what_vllm_may_refuse_is_said(opened: Opened) -> None:
    page = opened(MODEL)

    predict(page, seqs=4096)  # the tensors of so many leave no room for a KV cache

    expect(row(page, "Requests within the objectives")).to_contain_text("0 %")
    expect(page.get_by_text("vLLM may refuse this")).to_be_visible()


def test_without_a_law_it_says_why_and_predicts_nothing(opened: Opened, scene: Scene) -> None:
    target = scene.targets()["chat"]
    assert target.model is not None
    target.model = without_law(target.model)
    page = opened(MODEL)

    expect(page.get_by_text("No law of step time is in force: only 3 windows of steps.")).to_be_visible()
    expect(page.get_by_role("button", name="Predict")).to_be_hidden()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_prediction_is_accessible(opened: Opened, theme: Theme) -> None:
    page = opened(MODEL, dark=theme == "dark")
    predict(page, seqs=64)
    page.get_by_text("more flags").click()

    assert serious(page) == []


def test_a_prediction_fits_a_phone(opened: Opened) -> None:
    page = opened(MODEL, width=360)
    predict(page, seqs=64)
    page.get_by_text("more flags").click()

    assert page.evaluate("document.documentElement.scrollWidth") <= 360
