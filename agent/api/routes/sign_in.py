"""Signing in to the console by an identity provider, and signing out."""

from typing import Final
from urllib.parse import quote

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from flettner.agent.api.external_tokens import ReviewError
from flettner.agent.api.html_pages import answer_page
from flettner.agent.api.middleware import ACCESS_CONTROL
from flettner.agent.api.operations import Call, Operation
from flettner.agent.api.problems import RequestRefusedError
from flettner.agent.api.sign_in import ATTEMPT_S, CALLBACK, SIGN_IN, SIGNING_IN, SignIn, SignInError

_ERRORS: Final = frozenset(
    [
        "access_denied",
        "invalid_request",
        "invalid_scope",
        "server_error",
        "temporarily_unavailable",
        "unauthorized_client",
        "unsupported_response_type",
        "account_selection_required",
        "consent_required",
        "interaction_required",
        "login_required",
    ]
)
"""Of RFC 6749 (4.1.2.1) and OpenID Connect Core (3.1.2.6). Anybody can send another one, for the audit."""


class SignInQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    to: str = Field(
        default="/",
        max_length=300,
        pattern=r"^/[\x21-\x7e]*$",
        description="the console's page to return to, behind its #",
    )


class CallbackQuery(BaseModel):
    """Providers add parameters of their own."""

    model_config = ConfigDict(extra="ignore")

    state: str = Field(default="", max_length=200)
    code: str = Field(default="", max_length=4096)
    error: str = Field(default="", max_length=200)
    iss: str | None = Field(default=None, max_length=500)


class SignedOutDocument(BaseModel):
    ended: bool = Field(description="whether the request had a session")


def _signing_in(call: Call) -> SignIn:
    signing_in = call.request.app[SIGNING_IN]
    if signing_in is None:
        detail = "The config names no identity provider with a client's secret ([api.authenticators.oidc])."
        raise RequestRefusedError(404, detail)
    return signing_in


async def _begin(call: Call) -> web.Response:
    signing_in, cookies = _signing_in(call), _signing_in(call).cookies
    try:
        cookie, address = await signing_in.begin(call.parsed_as(SignInQuery).to)
    except ReviewError as error:
        return _provider_is_away(signing_in, error)
    signing_in.end(call.request)  # an earlier session: its cookie does not come with the provider's link back
    response = web.Response(status=303, headers={"Location": address})
    cookies.set(response, cookies.attempt, cookie, ATTEMPT_S)
    return response


async def _finish(call: Call) -> web.Response:
    signing_in, query = _signing_in(call), call.parsed_as(CallbackQuery)
    cookies = signing_in.cookies
    error = query.error if query.error in {"", *_ERRORS} else "an unknown error"
    try:
        session, place = await signing_in.finish(
            state=query.state,
            code=query.code,
            error=error,
            issuer=query.iss,
            cookie=call.request.cookies.get(cookies.attempt, ""),
            client=call.request.app[ACCESS_CONTROL].client_of(call.request),
        )
    except SignInError as refusal:
        call.request.app[ACCESS_CONTROL].report_failure(call.request, f"a sign-in: {refusal}")
        return answer_page("Not signed in", f"The sign-in is refused: {refusal}.", status=403)
    except RequestRefusedError as refusal:
        return answer_page("Not signed in", refusal.problem.detail, status=refusal.problem.status)
    except ReviewError as away:
        return _provider_is_away(signing_in, away)
    response = web.Response(status=303, headers={"Location": f"/#{quote(place, safe='/?=&%:')}"})
    cookies.set(response, cookies.session, session, signing_in.provider.session_h * 3600)
    cookies.clear(response, cookies.attempt)
    return response


def _provider_is_away(signing_in: SignIn, error: ReviewError) -> web.Response:
    signing_in.away.warn(why=str(error))
    return answer_page("Not signed in", "The identity provider does not answer as it should.", status=503)


async def _sign_out(call: Call) -> web.Response:
    signing_in = call.request.app[SIGNING_IN]
    has_session = signing_in is not None and signing_in.left_s(call.request) is not None
    answer = SignedOutDocument(ended=has_session).model_dump_json()
    response = web.Response(text=answer, content_type="application/json")
    if signing_in is not None:
        signing_in.end(call.request)
        signing_in.cookies.clear(response, signing_in.cookies.session)
    return response


OPERATIONS = (
    Operation(
        name="beginSignIn",
        method="GET",
        path=SIGN_IN,
        role=None,
        summary="To the identity provider's page",
        handler=_begin,
        response=str,
        media="text/html",
        status=303,
        query=SignInQuery,
        headers={"Location": "the provider's page"},
        errors={404: "The config names no identity provider for it."},
    ),
    Operation(
        name="finishSignIn",
        method="GET",
        path=CALLBACK,
        role=None,
        summary="Back from the identity provider's page, with a session",
        handler=_finish,
        response=str,
        media="text/html",
        status=303,
        query=CallbackQuery,
        headers={"Location": "the page of the console from which the person came"},
        errors={
            400: "The address is longer than 8 KiB.",
            404: "The config names no identity provider for it.",
        },
    ),
    Operation(
        name="signOut",
        method="POST",
        path="/v1/sign-out",
        role="viewer",
        summary="End the session of this browser",
        handler=_sign_out,
        response=SignedOutDocument,
        decides=False,
    ),
)
