"""The pages of the console: live, accessible, text only, one origin."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from flettner.agent.audit.chain import Head, verify
from flettner.agent.audit.records import Actor, JournalEntry
from flettner.agent.domain.canary_evidence import Counts, Goodput
from flettner.agent.domain.reading import SourceState
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase
from tests.integration.browser.conftest import Opened
from tests.support.console_data import Scene, scenery
from tests.support.console_site import Site, site

AXE = (Path(__file__).parent / "vendor" / "axe.js").read_text(encoding="utf-8")
PAGES = {
    "targets": "/targets",
    "target": "/targets/chat",
    "suggestions": "/suggestions",
    "suggestion": "/suggestions/chat-s1",
    "rollouts": "/rollouts",
    "rollout": "/rollouts/code-o3",
    "audit": "/audit",
    "model": "/model/chat",
}
FAULTS = """() => {
  const seen = (node) => node.checkVisibility({visibilityProperty: true, opacityProperty: true});
  const box = (node) => node.getBoundingClientRect();
  const name = (node) => `${node.tagName} ${node.className} "${node.textContent.trim().slice(0, 40)}"`;
  const faults = [];
  const alone = (node) => seen(node) && !node.closest('.picker, .visually-hidden');
  for (const node of [...document.querySelectorAll('header *, main *')].filter(alone)) {
    const style = getComputedStyle(node);
    const said = style.textOverflow === 'ellipsis';  // that there is more
    const cuts = ['hidden', 'clip'].includes(style.overflowX) && !said && node.clientWidth > 1;
    if (cuts && node.scrollWidth > node.clientWidth + 1) faults.push(`cut off: ${name(node)}`);
  }
  const pressed = [...document.querySelectorAll('button, a.button, input, select')].filter(alone);
  pressed.forEach((node, at) => pressed.slice(at + 1).forEach((other) => {
    const [a, b] = [box(node), box(other)];
    const apart = Math.max(b.left - a.right, a.left - b.right, b.top - a.bottom, a.top - b.bottom);
    if (apart < 4) faults.push(`too near: ${name(node)} and ${name(other)}`);
  }));
  return faults;
}"""
"""What a person would see and axe does not."""
Theme = Literal["light", "dark"]
Tour = Callable[[str, Theme, int], Page]
HEAVIEST = 500_000  # bytes, of everything that is transferred


def settled(page: Page) -> None:
    """Wait until the initial requests of the page are done."""
    expect(page.locator("main h1").first).to_be_visible()
    expect(page.locator("main")).to_contain_text(re.compile(".{60}"))
    page.wait_for_timeout(300)


def serious(page: Page) -> list[str]:
    page.evaluate(AXE)
    report = page.evaluate("axe.run(document, {resultTypes: ['violations'], preload: false})")
    return [
        f"{violation['id']}: {violation['help']}: {[node['html'][:200] for node in violation['nodes']][:3]}"
        for violation in report["violations"]
        if violation["impact"] in {"serious", "critical"}
    ]


@pytest.fixture(scope="module")
def tour(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tour]:
    """Open a page in a shared tab, one for each theme and width."""
    tabs: dict[tuple[str, int], Page] = {}
    with site(scenery(targets=2, hours=2), tmp_path_factory.mktemp("tour")) as place:

        def led(path: str, theme: Theme, width: int) -> Page:
            if (theme, width) not in tabs:
                viewport: ViewportSize = {"width": width, "height": 800}
                page = browser.new_page(viewport=viewport, color_scheme=theme, reduced_motion="reduce")
                page.add_init_script(f"sessionStorage.setItem('flettner.token', {place.token['operator']!r})")
                tabs[theme, width] = page
            page = tabs[theme, width]
            page.goto(f"{place.url}/#{path}")
            settled(page)
            return page

        yield led
        for page in tabs.values():
            page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible(tour: Tour, name: str, theme: Theme) -> None:
    assert serious(tour(PAGES[name], theme, 1280)) == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_a_phone(tour: Tour, name: str) -> None:
    page = tour(PAGES[name], "light", 360)

    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_cut_off_and_no_button_touches_another(tour: Tour, name: str, width: int) -> None:
    assert tour(PAGES[name], "light", width).evaluate(FAULTS) == []


def test_cut_text_and_touching_buttons_are_found(opened: Opened) -> None:
    page = opened("/targets/chat")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.evaluate("document.querySelector('.actions').style.gap = 0")
    page.evaluate("Object.assign(document.querySelector('h1').style, {width: '20px', overflow: 'hidden'})")

    faults = "\n".join(page.evaluate(FAULTS))

    assert "cut off: H1" in faults
    assert 'too near: BUTTON  "Propose…"' in faults


def test_the_share_within_the_slo_is_that_of_its_chart(opened: Opened) -> None:
    page = opened("/targets/chat")
    figure = page.locator(".figures > *", has_text="In SLO")

    expect(figure).to_contain_text("32.4 %")
    expect(page.locator("figure", has_text="SLO attainment")).to_contain_text("32.38 %")


def test_the_replicas_of_a_server_are_shown_where_there_are_several(tour: Tour) -> None:
    expect(tour("/targets/code", "light", 1280).get_by_role("table", name="Servers")).to_contain_text(
        "code-r0 4 replicas"
    )
    expect(tour(PAGES["rollout"], "light", 1280).locator(".figures").first).to_contain_text("4 blue, 1 green")
    expect(tour("/targets/chat", "light", 1280).locator("main")).not_to_contain_text("replicas")


def test_the_sign_in_is_accessible(opened: Opened) -> None:
    assert serious(opened("/targets", None, lossy=True)) == []


def test_a_dialog_is_accessible(opened: Opened) -> None:
    page = opened(PAGES["rollout"])
    page.get_by_role("button", name="Abort…").click()

    assert serious(page) == []


def test_the_lost_connection_banner_is_accessible(opened: Opened, place: Site) -> None:
    page = opened(PAGES["suggestion"], lossy=True)
    place.stop()
    expect(page.get_by_text("Connection lost.")).to_be_visible()

    assert serious(page) == []


def test_asks_for_a_sign_in_without_a_token(opened: Opened, place: Site) -> None:
    page = opened("/targets", None, lossy=True)
    page.get_by_label("Token").fill("fl_00000000_" + "x" * 43)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("unknown, revoked or expired")
    page.get_by_label("Token").fill(place.token["viewer"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("link", name="chat", exact=True)).to_be_visible()
    expect(page.locator("#who")).to_contain_text("viewer")
    assert place.token["viewer"] not in page.content()

    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert page.evaluate("sessionStorage.getItem('flettner.token')") is None


def test_a_revoked_token_leads_back_to_the_sign_in(opened: Opened, place: Site) -> None:
    page = opened("/targets", lossy=True)
    expect(page.locator("#who")).to_contain_text("live")
    place.file.write_text("", encoding="utf-8")
    place.change(place.tokens.reload)

    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("unknown, revoked or expired")


def test_shows_a_lost_and_a_restored_connection(opened: Opened, scene: Scene, place: Site) -> None:
    page = opened(PAGES["suggestion"], lossy=True)
    expect(page.locator("#who")).to_contain_text("live")
    place.stop()

    expect(page.get_by_text("Connection lost.")).to_be_visible()
    expect(page.get_by_role("button", name="Approve…")).to_have_attribute("aria-disabled", "true")
    expect(page.locator(".decide")).to_contain_text("the data may be old")

    scene.set(replace(scene.targets()["chat"].state, paused=True))
    place.start()
    expect(page.get_by_text("Connection lost.")).to_have_count(0)
    expect(page.locator(".decide")).to_contain_text("The target is paused")


def test_shows_events_without_a_reload(opened: Opened, scene: Scene, place: Site) -> None:
    page = opened("/targets/code")
    expect(page.locator("#who")).to_contain_text("live")

    def pause() -> None:
        scene.set(replace(scene.targets()["code"].state, paused=True, note="paused by bob"))
        scene.target = "code"
        scene.record("Paused", "bob")

    place.change(pause)
    expect(page.get_by_text("paused by bob")).to_be_visible()


def test_renders_untrusted_text_as_text(opened: Opened, scene: Scene, place: Site) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\"><script>alert(1)</script>"
    state = scene.targets()["chat"].state
    made = state.suggestions.open[0]
    proposal = replace(made.proposal, why=evil, expects=evil, source=evil)
    made = replace(made, proposal=proposal, notes=(evil,))
    scene.set(replace(state, note=evil, suggestions=replace(state.suggestions, open=(made,))))
    page = opened("/targets")
    for path in ("/targets", "/targets/chat", "/suggestions", "/suggestions/chat-s1"):
        page.goto(f"{place.url}/#{path}")
        settled(page)
        assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
        assert "owned" not in page.title()
    expect(page.locator(".why")).to_have_text(evil)


def test_the_numbers_of_a_chart_can_be_read(opened: Opened) -> None:
    page = opened("/targets/chat")
    chart = page.locator("figure", has_text="Time to first token")
    chart.get_by_text("Numbers").click()

    expect(chart.get_by_role("row")).not_to_have_count(0)
    expect(chart.get_by_role("columnheader").first).to_have_text("time")


def test_the_flags_are_shown_as_a_diff(opened: Opened) -> None:
    page = opened(PAGES["suggestion"])

    expect(page.locator(".diff .minus")).to_contain_text("--max-num-seqs 64")
    expect(page.locator(".diff .plus")).to_contain_text("--max-num-seqs 128")
    expect(page.locator(".diff .same").first).to_contain_text("--model Qwen/Qwen3-8B")


def test_shows_an_error_for_an_unknown_address(opened: Opened, place: Site) -> None:
    page = opened("/suggestions/none-s1", lossy=True)
    for path in ("/suggestions/none-s1", "/rollouts/none-o1", "/targets/none", "/targets/%ff"):
        page.goto(f"{place.url}/#{path}")
        expect(page.get_by_role("alert")).to_contain_text("There is no")


def test_filters_the_audit_and_verifies_an_entry(opened: Opened) -> None:
    page = opened("/audit?target=chat")
    rows = page.locator(".timeline > li:visible")
    expect(rows.first).to_contain_text("chat")
    page.get_by_label("Who").select_option("person")
    page.get_by_label("Text").fill("complains")
    expect(rows.first).to_contain_text("rollout: aborted")
    rows.first.locator("summary").first.click()

    expect(rows.first.get_by_text("Verified: its hash")).to_be_visible()
    expect(rows.first.locator(".mark.good")).to_be_visible()


def test_the_audit_folds_observations_and_the_judge_shows_goodput(opened: Opened, scene: Scene) -> None:
    for target in ("chat", "code"):
        actor = Actor(kind="daemon", id="flettner")
        scene.write(
            JournalEntry(at=scene.at, actor=actor, action="target.observed", target=target, why="seen")
        )
    page = opened("/audit")
    expect(page.get_by_role("status").filter(has_text="2 observations are folded")).to_be_visible()
    expect(page.locator(".timeline > li:visible", has_text="target: observed")).to_have_count(0)
    page.get_by_label("Observations").check()
    expect(page.locator(".timeline > li:visible", has_text="target: observed")).to_have_count(2)

    page.goto(f"{page.url.partition('#')[0]}#{PAGES['rollout']}")
    goodput = page.get_by_role("table", name="Goodput: requests that fail or miss an objective")
    expect(goodput).to_contain_text("over 10,000 of 100")
    expect(goodput).to_contain_text("Proved: green missed 4 of 640")
    expect(page.get_by_role("table", name="Share of bad requests")).to_contain_text("not needed")
    expect(page.get_by_text("upright line: next step").first).to_be_visible()

    values = "[4.9e8, 18120, 0.1234, 2.5e-5].map((value) => number(value))"
    numbers = page.evaluate(f"import('/assets/format.js').then(({{ number }}) => {values})")
    assert numbers == ["490,000,000", "18,120", "0.123", "0.000025"]
    latencies = "[0.0417, 12.34, 277, 1890].map((value) => latency(value))"
    shown = page.evaluate(f"import('/assets/format.js').then(({{ latency }}) => {latencies})")
    assert shown == ["41.7 ms", "12.3 s", "4.6 min", "32 min"]
    ticks = (
        "import('/assets/charts.js').then(({ logTicks }) => [logTicks(0.1, 100), logTicks(1, 1e76).length])"
    )
    assert page.evaluate(ticks) == [[0.1, 1, 10, 100], 6]
    page.goto(f"{page.url.partition('#')[0]}#{PAGES['target']}")
    expect(page.locator(".figure", has_text="In SLO").first).to_contain_text("%")


def test_a_verdict_is_said_once_and_nothing_beside_it_contradicts_it(opened: Opened, scene: Scene) -> None:
    state = scene.targets()["code"].state
    assert isinstance(state.rollout, Canary)
    verdict = "green failed or missed the SLO with 0 of 39 requests, blue with 29 of 44"
    proved = Goodput(counted=Counts(green=39))
    rollout = replace(
        state.rollout,
        why=f"100 % passed: {verdict}",
        waits=verdict,
        gain=f"better: {verdict}",
        evidence=replace(state.rollout.evidence, goodput=proved, better=f"better: {verdict}"),
    )
    scene.set(replace(state, phase=Phase.PROMOTING, rollout=rollout, note="code-r0 gets no new requests"))

    page = opened(PAGES["rollout"])

    expect(page.locator(".note").first).to_contain_text("100 % passed")
    assert page.locator(".note", has_text=verdict).count() == 1
    expect(page.get_by_text("This step waits for")).to_have_count(0)
    goodput = page.get_by_role("table", name="Goodput: requests that fail or miss an objective")
    expect(goodput).to_contain_text("proved")
    expect(goodput).not_to_contain_text("of 100")


def test_lost_traffic_is_urgent_and_never_shown_as_observing(opened: Opened, scene: Scene) -> None:
    why = "process 7 (squatter) listens on 127.0.0.1:8080"
    scene.targets()["chat"].sources = {
        "traffic": SourceState(at=scene.at, source="traffic", available=False, why=why)
    }

    page = opened(PAGES["targets"])

    expect(page.locator("li.bad", has_text="chat")).to_contain_text(f"traffic lost: {why}")
    expect(page.get_by_role("row", name="chat")).to_contain_text("traffic lost")
    expect(page.get_by_role("row", name="chat")).not_to_contain_text("observing")


def test_each_line_of_a_chart_has_a_colour_of_its_own(opened: Opened, scene: Scene) -> None:
    streams = ("errors", "stalled", "gave_up", "refused", "ttft", "itl", "e2e")
    points = [replace(point, judged=dict.fromkeys(streams, (1.0, 2.0))) for point in scene.points("code-o3")]
    scene.curves["code-o3"] = points
    page = opened(PAGES["rollout"])
    keys = page.locator("figure", has_text="green is not worse").locator(".key:not(:has-text('upright'))")
    expect(keys).to_have_count(len(streams) + 1)

    colours = keys.evaluate_all("nodes => nodes.map((node) => getComputedStyle(node, '::before').color)")

    assert len(set(colours)) == len(streams) + 1


def test_verifies_the_full_chain_in_the_browser(opened: Opened, scene: Scene) -> None:
    page = opened("/audit")
    page.get_by_role("button", name="Verify the chain").click()

    expect(page.get_by_text(f"Verified: entries 1 to {len(scene._records)} are intact")).to_be_visible()
    expect(page.locator(".digest code").first).to_have_text(str(scene._records[-1]["hash"]))


def test_names_a_forged_entry(opened: Opened, scene: Scene) -> None:
    scene._records[39] = {**scene._records[39], "why": "nothing happened"}
    page = opened("/audit")
    page.get_by_role("button", name="Verify the chain").click()

    expect(page.get_by_role("alert")).to_contain_text("Entry 40 failed verification")


def test_the_export_equals_the_journal(opened: Opened, scene: Scene, tmp_path: Path) -> None:
    page = opened("/audit")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    file = tmp_path / "audit.jsonl"
    download.value.save_as(file)

    last = scene._records[-1]
    verification = verify(file, pins=[Head(seq=int(str(last["seq"])), hash=str(last["hash"]))])
    assert (verification.ok, verification.entries) == (True, len(scene._records))
    assert json.loads(file.read_text().splitlines()[0]) == scene._records[0]


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Site]:
    folder = tmp_path / "crowd"
    folder.mkdir()
    with site(scenery(targets=20, hours=24), folder) as place:
        yield place


def test_twenty_targets_transfer_few_bytes_from_one_origin(browser: Browser, crowd: Site) -> None:
    page = browser.new_page()
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.add_init_script(f"sessionStorage.setItem('flettner.token', {crowd.token['viewer']!r})")
    page.goto(f"{crowd.url}/#/targets")
    expect(page.locator(".spark path")).to_have_count(20)
    page.goto(f"{crowd.url}/#/targets/chat")
    expect(page.locator(".chart canvas").first).to_be_visible()

    weight = page.evaluate("performance.getEntries().reduce((sum, one) => sum + (one.transferSize || 0), 0)")
    page.close()
    assert 0 < weight < HEAVIEST
    assert all(url.startswith((crowd.url, "blob:")) for url in urls)
