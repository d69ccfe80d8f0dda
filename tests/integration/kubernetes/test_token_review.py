"""Callers of the API by their tokens of a real API server."""

import pytest

from flettner.agent.api.external_tokens import IdentifiedCaller, ReviewError
from flettner.authenticators.token_review import TokenReview
from tests.support.kubernetes.namespace import Namespace

DELEGATOR = "system:auth-delegator"


async def reviewer(here: Namespace, **roles: object) -> TokenReview:
    """As the daemon's ServiceAccount with the ClusterRoleBinding of the chart."""
    user = await here.user("daemon")
    binding = {
        "metadata": {"name": here.name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": DELEGATOR},
        "subjects": [{"kind": "ServiceAccount", "name": "daemon", "namespace": here.name}],
    }
    await here.api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    return TokenReview(kubeconfig=str(user), **roles)  # type: ignore[arg-type]


async def token_of(here: Namespace, account: str, *audiences: str) -> str:
    await here.create("serviceaccounts", {"metadata": {"name": account}})
    asked = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": list(audiences)},
    }
    made = await here.api.create(here.path("serviceaccounts", f"{account}/token"), asked)
    return str(made["status"]["token"])


async def test_an_account_has_the_highest_role_of_its_name_and_groups(here: Namespace) -> None:
    name = f"system:serviceaccount:{here.name}:person"
    review = await reviewer(
        here, users={name: "viewer"}, groups={f"system:serviceaccounts:{here.name}": "operator"}
    )

    caller = await review.identify(await token_of(here, "person", "flettner"))

    assert caller == IdentifiedCaller(name=name, role="operator")


async def test_tokens_for_other_services_and_of_strangers_are_refused(here: Namespace) -> None:
    name = f"system:serviceaccount:{here.name}:person"
    review = await reviewer(here, users={name: "admin"})

    for token in (
        await token_of(here, "person"),  # for the API server itself
        await token_of(here, "stranger", "flettner"),
        "no.such.token",
    ):
        assert await review.identify(token) is None


async def test_without_the_right_the_error_says_what_to_give(here: Namespace) -> None:
    review = TokenReview(kubeconfig=str(await here.user("daemon")), users={"a": "viewer"})

    with pytest.raises(ReviewError, match=r"forbids it.*tokenreviews"):
        await review.identify("any.token.here")
