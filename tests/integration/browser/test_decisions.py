"""Decisions of an operator in the console, with real clicks."""

import re
from dataclasses import replace
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Page, Request, expect

from flettner.agent.api.tokens import load_tokens, store_tokens
from flettner.agent.config.windows import parse_period
from flettner.agent.domain.digest import digest
from flettner.agent.domain.state import Phase
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.domain.windows import Schedule, Windows
from flettner.agent.machine.proposing import approve as machine_approve
from tests.integration.browser.conftest import Opened
from tests.support.console_data import Scene
from tests.support.console_site import Site
from tests.support.machine_stories import rules

SUGGESTION, ROLLOUT = "/suggestions/chat-s1", "/rollouts/code-o3"


def suggestion(scene: Scene) -> Suggestion:
    return next(made for made in scene.suggestions() if made.id == "chat-s1")


def decide(page: Page, what: str, text: str, confirm: str) -> None:
    begin(page, what, text)
    finish(page, confirm)


def begin(page: Page, what: str, text: str) -> None:
    page.get_by_role("button", name=what).click()
    page.get_by_role("dialog").get_by_role("textbox").fill(text)


def finish(page: Page, confirm: str) -> None:
    page.get_by_role("dialog").get_by_role("button", name=confirm, exact=True).click()


def change(scene: Scene) -> None:
    """Replace the change of the suggestion under the same id."""
    state = scene.targets()["chat"].state
    made = state.suggestions.open[0]
    proposal = replace(made.proposal, to={"max_num_seqs": 96})
    made = replace(made, proposal=proposal, digest=digest({"to": 96}))
    scene.set(replace(state, suggestions=replace(state.suggestions, open=(made,))))
    scene.record("changed")


def test_an_approval_carries_the_displayed_digest(opened: Opened, scene: Scene) -> None:
    page = opened(SUGGESTION)
    shown = suggestion(scene).digest
    expect(page.locator(".decide")).to_contain_text(shown)

    decide(page, "Approve…", "for the evening", "Approve")

    expect(page.get_by_text("Approved. The rollout starts.")).to_be_visible()
    expect(page.locator(".decide")).to_contain_text("approved by operator ann")
    assert (suggestion(scene).status, suggestion(scene).digest) == ("approved", shown)
    page.locator(".notice").get_by_role("link", name="To the rollout").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("max_num_seqs 64 → 128")


def test_an_approval_that_waits_for_the_windows_says_when_it_starts(
    opened: Opened, scene: Scene, place: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = Schedule(zone=ZoneInfo("UTC"), allowed=(parse_period("daily 00:00-05:00"),))
    closed = replace(rules(), windows=Windows((night,)))
    monkeypatch.setattr(scene, "_approved", lambda state, event: machine_approve(closed, state, event)[0])
    page = opened(SUGGESTION)

    decide(page, "Approve…", "tonight", "Approve")

    expect(page.get_by_text("Approved. The rollout starts when the windows open.")).to_be_visible()
    decision = page.locator(".decide")
    expect(decision).to_contain_text("Approved by operator ann. It starts when the windows open.")
    expect(decision).to_contain_text("they open: Sat 2026-11-21 00:00 UTC")
    expect(page.get_by_role("button", name="Approve…")).to_have_count(0)
    expect(page.get_by_role("heading", level=1)).to_contain_text("scheduled")
    page.goto(f"{place.url}/#/targets")
    urgent = page.locator(".urgent")
    expect(urgent).to_contain_text("approved by operator ann, starts when the windows open")
    expect(urgent).not_to_contain_text("needs approval")
    page.goto(f"{place.url}/#/suggestions")
    expect(page.get_by_role("table")).to_contain_text("by operator ann, starts when the windows open")
    page.goto(f"{place.url}/#/targets/chat")
    page.get_by_role("link", name="chat-s1 is approved, and waits").click()

    decide(page, "Deny…", "not tonight", "Deny")

    expect(page.get_by_text("Denied.")).to_be_visible()


def test_an_operator_cannot_approve_their_own_proposal_where_the_config_asks_for_another(
    opened: Opened, scene: Scene
) -> None:
    state = scene.targets()["chat"].state
    made = state.suggestions.open[0]
    own = replace(made, proposal=replace(made.proposal, rule="person"), policy="operator ann")
    suggestions = replace(state.suggestions, open=(own,))
    scene.set(replace(state, suggestions=suggestions, approval="other"))

    page = opened(SUGGESTION)

    expect(page.get_by_role("button", name="Approve…")).to_have_attribute("aria-disabled", "true")
    expect(page.locator(".decide")).to_contain_text("You proposed it: another operator must approve it.")
    expect(page.get_by_role("button", name="Deny…")).not_to_have_attribute("aria-disabled", "true")


def test_an_upgrade_shows_in_one_table_all_that_differs(opened: Opened, scene: Scene) -> None:
    state = scene.targets()["chat"].state
    made = state.suggestions.open[0]
    to = {"image": "vllm:v0.33.0@sha256:1", "env.A": None, "max_num_seqs": 128}
    upgrade = replace(
        made,
        proposal=replace(made.proposal, to=to),
        before={"image": "vllm:v0.32.0@sha256:0", "env.A": "1", "max_num_seqs": 64},
        preflight=replace(made.preflight, versions={"vLLM": ("0.32.0", "0.33.0"), "CUDA": ("", "13.0")}),
    )
    scene.set(replace(state, suggestions=replace(state.suggestions, open=(upgrade,))))

    page = opened(SUGGESTION)

    rows = page.get_by_role("table", name="What differs").get_by_role("row")
    expect(rows).to_contain_text(
        [
            "Now",
            re.compile(r"image.*v0\.32\.0@sha256:0.*v0\.33\.0@sha256:1"),
            re.compile("env.A.*1.*unset"),
            re.compile("max_num_seqs.*64.*128"),
            re.compile(r"vLLM.*0\.32\.0.*0\.33\.0"),
            re.compile(r"CUDA.*unknown.*13\.0"),
        ]
    )
    flags = page.get_by_role("region", name="Flags as a diff")
    expect(flags).to_contain_text("--max-num-seqs 128")
    expect(flags).not_to_contain_text("--image")


def test_denial_requires_a_reason(opened: Opened, scene: Scene) -> None:
    page = opened(SUGGESTION)

    decide(page, "Deny…", "  ", "Deny")
    expect(page.get_by_role("alert").filter(has_text="Enter a reason")).to_be_visible()
    assert suggestion(scene).status == "open"
    page.get_by_role("dialog").get_by_role("textbox").fill("not before the release")
    page.get_by_role("dialog").get_by_role("button", name="Deny", exact=True).click()

    expect(page.get_by_text("Denied.", exact=True)).to_be_visible()
    assert suggestion(scene).status == "denied"
    assert scene.targets()["chat"].state.note == "not before the release"


def test_a_decision_can_be_cancelled(opened: Opened, scene: Scene) -> None:
    page = opened(SUGGESTION)
    page.get_by_role("button", name="Approve…").click()
    page.keyboard.press("Escape")

    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Approve…")).to_be_focused()
    assert suggestion(scene).status == "open"


def test_every_decision_works_with_the_keyboard(opened: Opened, scene: Scene) -> None:
    page = opened(SUGGESTION)
    page.get_by_role("button", name="Approve…").focus()
    page.keyboard.press("Enter")
    page.keyboard.type("by hand")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")

    expect(page.get_by_text("Approved. The rollout starts.")).to_be_visible()
    assert suggestion(scene).status == "approved"


def test_rolls_back_a_rollout_with_a_reason(opened: Opened, scene: Scene) -> None:
    page = opened(ROLLOUT)

    decide(page, "Abort…", "customers complain", "Abort the rollout")

    expect(page.get_by_text("The rollout is rolled back.")).to_be_visible()
    assert scene.targets()["code"].state.phase is Phase.ROLLING_BACK
    assert scene.targets()["code"].state.note == "customers complain"


def test_rejects_a_suggestion_that_expired_meanwhile(opened: Opened, scene: Scene, place: Site) -> None:
    page = opened(SUGGESTION, lossy=True)
    page.get_by_role("button", name="Approve…").click()
    place.change(lambda: setattr(scene, "at", scene.at + timedelta(hours=2)))
    page.get_by_role("dialog").get_by_role("button", name="Approve", exact=True).click()

    expect(page.get_by_role("alert").filter(has_text="The suggestion expired at")).to_be_visible()
    assert suggestion(scene).status == "open"  # not approved


def test_an_expired_suggestion_offers_no_buttons(opened: Opened, scene: Scene) -> None:
    scene.at += timedelta(hours=2)
    page = opened(SUGGESTION)

    expect(page.locator(".decide")).to_contain_text("It expired at")
    expect(page.locator(".decide button")).to_have_count(0)


def test_a_changed_suggestion_cannot_be_approved_unseen(opened: Opened, scene: Scene, place: Site) -> None:
    page = opened(SUGGESTION)
    expect(page.get_by_role("heading", level=1)).to_contain_text("64 → 128")
    place.change(lambda: change(scene))

    expect(page.get_by_role("alert").filter(has_text="has changed since you opened it")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_contain_text("64 → 128")
    approve = page.get_by_role("button", name="Approve…")
    expect(approve).to_have_attribute("aria-disabled", "true")
    approve.click(force=True)
    expect(page.get_by_role("dialog")).to_have_count(0)

    page.get_by_role("button", name="Show the present version").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("64 → 96")
    decide(page, "Approve…", "", "Approve")
    expect(page.get_by_text("Approved. The rollout starts.")).to_be_visible()
    assert suggestion(scene).proposal.to == {"max_num_seqs": 96}


def test_does_not_approve_a_suggestion_that_changes_in_the_dialog(
    opened: Opened, scene: Scene, place: Site
) -> None:
    page = opened(SUGGESTION, lossy=True)
    page.get_by_role("button", name="Approve…").click()
    place.change(lambda: change(scene))
    page.get_by_role("dialog").get_by_role("button", name="Approve", exact=True).click()

    expect(page.get_by_role("alert").filter(has_text="has changed since it was shown")).to_be_visible()
    assert suggestion(scene).status == "open"


def test_a_viewer_sees_why_no_decision_is_allowed(opened: Opened, scene: Scene) -> None:
    page = opened(SUGGESTION, "viewer")
    reason = "This needs the role operator; your token's role is viewer."
    for name in ("Approve…", "Deny…"):
        expect(page.get_by_role("button", name=name)).to_have_attribute("aria-disabled", "true")
        expect(page.get_by_role("button", name=name)).to_have_accessible_description(reason)
    page.get_by_role("button", name="Approve…").click(force=True)

    expect(page.get_by_role("dialog")).to_have_count(0)
    assert suggestion(scene).status == "open"


def test_shows_a_revoked_role(opened: Opened, scene: Scene, place: Site) -> None:
    page = opened(ROLLOUT, lossy=True)
    begin(page, "Abort…", "too slow")
    tokens = load_tokens(place.file)
    store_tokens(place.file, [token.model_copy(update={"role": "viewer"}) for token in tokens.values()])
    place.change(place.tokens.reload)

    finish(page, "Abort the rollout")

    expect(
        page.get_by_role("alert").filter(has_text="Not allowed. This needs the role operator")
    ).to_be_visible()
    assert scene.targets()["code"].state.phase is Phase.CANARY


def test_in_advise_mode_the_approval_shows_the_manual_steps(opened: Opened, scene: Scene) -> None:
    scene.set(replace(scene.targets()["chat"].state, mode="advise"))
    page = opened(SUGGESTION)

    expect(page.get_by_role("button", name="Approve…")).to_have_attribute("aria-disabled", "true")
    expect(page.locator(".decide")).to_contain_text('set [agent] mode = "approve"')
    by_hand = page.get_by_role("region", name="Apply it by hand").locator("pre")
    expect(by_hand).to_contain_text("vllm serve Qwen/Qwen3-8B --max-num-seqs 128")
    decide(page, "Deny…", "never", "Deny")
    expect(page.get_by_text("Denied.", exact=True)).to_be_visible()


def test_a_person_proposes_a_change_in_the_console(opened: Opened) -> None:
    page = opened("/targets/code")
    page.get_by_role("button", name="Propose…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Change").fill("max_num_seqs")
    dialog.get_by_label("Reason").fill("the evening peak")
    dialog.get_by_role("button", name="Propose", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("is not KNOB=VALUE")
    dialog.get_by_role("button", name="Cancel").click()

    page.goto(f"{page.url.partition('#')[0]}#/targets/chat")
    page.get_by_role("button", name="Propose…").click()
    dialog.get_by_label("Change").fill("max_num_seqs=96")
    dialog.get_by_label("Reason").fill("the evening peak")
    dialog.get_by_role("button", name="Propose", exact=True).click()

    expect(page.get_by_role("heading", level=1)).to_contain_text("max_num_seqs 64 → 96")
    expect(page.locator(".why")).to_have_text("the evening peak")


def test_a_person_undoes_the_last_promotion(opened: Opened) -> None:
    page = opened("/targets/chat")
    page.get_by_role("button", name="Undo…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Nothing changes before an approval.")
    dialog.get_by_label("Reason").fill("answers are slower since")
    dialog.get_by_role("button", name="Propose", exact=True).click()

    expect(page.locator(".why")).to_contain_text("undoes the promotion at")
    expect(page.locator(".why")).to_contain_text("answers are slower since")


def test_a_target_is_paused_and_resumed(opened: Opened, scene: Scene) -> None:
    page = opened("/targets/chat")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    assert scene.targets()["chat"].state.paused
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    assert not scene.targets()["chat"].state.paused


def test_a_target_in_maintenance_says_so_until_it_is_resumed(opened: Opened, scene: Scene) -> None:
    page = opened("/targets/chat")
    page.get_by_role("button", name="Maintenance").click()
    expect(page.locator("h1")).to_contain_text("maintenance")
    assert scene.targets()["chat"].state.maintenance
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("h1")).not_to_contain_text("maintenance")
    assert not scene.targets()["chat"].state.maintenance


def test_a_retried_decision_counts_once(opened: Opened, place: Site) -> None:
    page = opened(SUGGESTION, lossy=True)
    keys: list[str | None] = []

    def note(request: Request) -> None:
        if request.method == "POST":
            keys.append(request.headers.get("idempotency-key"))

    page.on("request", note)
    page.get_by_role("button", name="Approve…").click()
    place.stop()
    page.get_by_role("dialog").get_by_role("button", name="Approve", exact=True).click()
    expect(
        page.get_by_role("alert").filter(has_text=re.compile("does not answer.*counts once"))
    ).to_be_visible()
    place.start()
    page.get_by_role("dialog").get_by_role("button", name="Approve", exact=True).click()

    expect(page.get_by_text("Approved. The rollout starts.")).to_be_visible()
    assert len(keys) == 2
    assert keys[0] == keys[1] is not None
