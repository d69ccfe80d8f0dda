"""Pages that a person sees outside the console, without scripts: the console's style and escaped text."""

from collections.abc import Mapping
from html import escape
from typing import Final

from aiohttp import web

from flettner.agent.api.middleware import SAFE_HEADERS

_POLICY: Final = "Content-Security-Policy"


def answer_page(
    title: str, *paragraphs: str, form: str = "", status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """`form`: HTML, the only part that is not escaped; the page may then send it to this origin."""
    text = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs if paragraph)
    body = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="robots" content="noindex">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)} · flettner</title><link rel="stylesheet" href="/assets/style.css"></head>'
        f'<body><main class="plain"><h1>{escape(title)}</h1>{text}{form}<p><a href="/">To the console</a></p>'
        "</main></body></html>"
    )
    policy = SAFE_HEADERS[_POLICY]
    if form:
        policy = policy.replace("form-action 'none'", "form-action 'self'")
    return web.Response(
        text=body, status=status, content_type="text/html", headers={_POLICY: policy, **(headers or {})}
    )
