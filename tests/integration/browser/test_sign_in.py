"""Signing in to the console at an identity provider, in a browser."""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from playwright.sync_api import expect

from flettner.authenticators.oidc import Oidc
from tests.integration.browser.conftest import Opened
from tests.support.console_data import Scene
from tests.support.console_site import Site, site
from tests.support.identity_provider import SECRET, IdentityProvider, identity_provider


@pytest.fixture
def provider(place: Site) -> IdentityProvider:
    assert place.provider is not None
    return place.provider


@pytest.fixture
def place(scene: Scene, tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "client.secret").write_text(SECRET)
    with site(scene, tmp_path) as place:
        held = AsyncExitStack()
        place.provider = place.thread.run(held.enter_async_context(identity_provider()))
        oidc = Oidc(
            issuer=place.provider.issuer,
            groups={"sre": "operator"},
            client_secret_file=str(tmp_path / "client.secret"),
        )
        place.authenticators = {"oidc": oidc}
        place.stop()
        place.start()
        yield place
        place.thread.run(held.aclose())


def test_a_person_signs_in_at_the_provider_and_out_again(opened: Opened) -> None:
    page = opened("/suggestions", None, lossy=True)
    page.get_by_role("link", name="Sign in with 127.0.0.1").click()

    expect(page.get_by_role("heading", name="Suggestions")).to_be_visible()
    expect(page.locator("#who")).to_contain_text("oidc ann operator")
    expect(page.locator("#who")).to_contain_text("live")
    assert page.evaluate("document.cookie") == ""

    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("link", name="Sign in with 127.0.0.1")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_person_without_a_role_sees_why(opened: Opened, provider: IdentityProvider) -> None:
    provider.person = {"groups": ["others"]}
    page = opened("/targets", None, lossy=True)
    page.get_by_role("link", name="Sign in with 127.0.0.1").click()

    expect(page.get_by_role("heading", name="Not signed in")).to_be_visible()
    expect(page.locator("main")).to_contain_text("no role here")
    page.get_by_role("link", name="To the console").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
