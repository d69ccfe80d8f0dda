"""Tokens that a Kubernetes API server accepts, of ServiceAccounts and of people by OIDC, by TokenReviews.

The daemon's ServiceAccount needs the cluster-wide right to `create` `tokenreviews`, as the ClusterRole
`system:auth-delegator` gives it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flettner.agent.api.external_tokens import IdentifiedCaller, ReviewError, highest_role
from flettner.agent.config.listen import Role
from flettner.agent.domain.errors import ActError
from flettner.clients.kubernetes.client import TOKEN_REVIEW
from flettner.clients.kubernetes.documents import Json
from flettner.clients.kubernetes.options import AccessOptions


@dataclass(frozen=True, kw_only=True)
class TokenReview(AccessOptions):
    """The highest role of the user and of the groups counts; without one the token is refused."""

    audiences: tuple[str, ...] = ("flettner",)  # the token must be for one of these
    users: Mapping[str, Role] = field(default_factory=dict)  # roles by user name
    groups: Mapping[str, Role] = field(default_factory=dict)  # roles by group

    def __post_init__(self) -> None:
        if not self.audiences or not all(self.audiences):
            raise ValueError("audiences is empty: a token for any service of the cluster would be accepted")
        if not self.users and not self.groups:
            raise ValueError("users and groups are empty: nobody would have a role")

    async def identify(self, token: str) -> IdentifiedCaller | None:
        spec: Json = {"token": token, "audiences": list(self.audiences)}
        body: Json = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "metadata": {"name": "caller"},
            "spec": spec,
        }
        try:
            status = (await self.client().create(TOKEN_REVIEW, body)).get("status") or {}
        except ActError as error:
            raise ReviewError(error.why) from error
        user = status.get("user") or {}
        if not status.get("authenticated") or not set(status.get("audiences") or ()) & set(self.audiences):
            return None  # an API server that does not know audiences answers with none
        name, member_of = str(user.get("username", "")), user.get("groups") or ()
        role = highest_role(name, member_of, users=self.users, groups=self.groups)
        return IdentifiedCaller(name=str(user["username"]), role=role) if role else None


plugin = TokenReview
