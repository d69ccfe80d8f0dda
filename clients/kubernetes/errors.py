"""How a call to the API server can fail."""

from http import HTTPStatus

import httpx2
import msgspec
from lightkube.core.exceptions import ApiError, ConfigError

from flettner.agent.domain.errors import ActError


class MissingError(ActError):
    """There is no such object."""


class ConflictError(ActError):
    """Another client has changed or created the object meanwhile."""


class ForbiddenError(ActError):
    """The credentials lack the right to the call (403)."""


class ExpiredError(ActError):
    """The API server has no history any more since the version that a watch was to begin at (410)."""


class AwayError(ActError):
    """The API server does not answer, or is overloaded. `retry_s`: the least pause that it asks for."""

    def __init__(self, why: str, retry_s: float = 0.0) -> None:
        super().__init__(why, external=True)
        self.retry_s = retry_s


FAILURES = (httpx2.HTTPError, TimeoutError, msgspec.DecodeError, ConfigError, OSError)
"""What lightkube raises."""


def to_act_error(what: str, error: Exception) -> ActError:
    """Return the error that names the call and what to do. `error`: one of FAILURES."""
    match error:
        case httpx2.HTTPStatusError():
            return _refusal(what, error)
        case httpx2.TransportError() if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return AwayError(
                f"{what}: the certificate of the API server is not accepted: {error} "
                "(`certificate-authority` and `server` of the kubeconfig must be those of the cluster)"
            )
        case TimeoutError() | httpx2.HTTPError():
            return AwayError(f"{what}: the API server does not answer: {str(error) or 'no answer in time'}")
        case msgspec.DecodeError():  # a proxy's page, or a line of a watch that was cut off
            return AwayError(f"{what}: the answer is no JSON: {error}")
        case _:
            return ActError(f"{what}: no access to a Kubernetes API server: {error}", external=True)


def status_of(error: Exception) -> int:
    """Return the status code of a refusal; 0: it is none."""
    if isinstance(error, ApiError):  # also of an event in a watch, which has no answer of its own
        return error.status.code or 0
    return error.response.status_code if isinstance(error, httpx2.HTTPStatusError) else 0


def _refusal(what: str, error: httpx2.HTTPStatusError) -> ActError:
    code = status_of(error)
    why = (error.status.message or "") if isinstance(error, ApiError) else str(error)
    if code == HTTPStatus.NOT_FOUND:
        return MissingError(f"{what}: {why}")
    if code == HTTPStatus.CONFLICT:
        return ConflictError(f"{what}: it has changed meanwhile: {why}")
    if code == HTTPStatus.GONE:
        return ExpiredError(f"{what}: {why}", external=True)
    if code == HTTPStatus.FORBIDDEN and "exceeded quota" not in why:
        return ForbiddenError(
            f"{what}: the API server forbids it: {why} (give flettner's Role this right)", external=True
        )
    if code == HTTPStatus.UNAUTHORIZED:
        return ActError(
            f"{what}: the API server does not accept the credentials (401): {why} (the token or certificate "
            "of the kubeconfig is wrong or has expired: renew it; it is read again at each call)",
            external=True,
        )
    message = f"{what}: the API server answers {code}: {why}"
    if code == HTTPStatus.TOO_MANY_REQUESTS or code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return AwayError(message, _retry_after(error))
    return ActError(message, external=code == HTTPStatus.FORBIDDEN)  # a quota


def _retry_after(error: httpx2.HTTPStatusError) -> float:
    """Return the seconds of the header Retry-After; 0 without one."""
    answer = getattr(error, "response", None)
    text = answer.headers.get("Retry-After", "") if answer is not None else ""
    return float(text) if text.isdecimal() and text.isascii() else 0.0
