"""Pages that a person sees outside the console, without scripts: the console's style and escaped text."""

from collections.abc import Mapping
from html import escape
from typing import Final

from aiohttp import web

from flettner.agent.api.middleware import SAFE_HEADERS

_POLICY: Final = "Content-Security-Policy"
FORM_HEADERS: Final[Mapping[str, str]] = {
    _POLICY: SAFE_HEADERS[_POLICY].replace("form-action 'none'", "form-action 'self'"),
    "Referrer-Policy": "same-origin",  # with no-referrer a browser sends a form with `Origin: null`
}
"""Of a page with a form, which may be sent to this origin only."""


def render_page(title: str, *paragraphs: str, form: str = "") -> str:
    """`form`: HTML, the only part that is not escaped."""
    text = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs if paragraph)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="robots" content="noindex">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)} · flettner</title><link rel="stylesheet" href="/assets/style.css"></head>'
        f'<body><main class="plain"><h1>{escape(title)}</h1>{text}{form}<p><a href="/">To the console</a></p>'
        "</main></body></html>"
    )


def answer_page(title: str, *paragraphs: str, status: int) -> web.Response:
    return web.Response(text=render_page(title, *paragraphs), status=status, content_type="text/html")
