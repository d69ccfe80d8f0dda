"""Watching a resource until Ctrl-C or `q`: a screen that is redrawn, or a line for each change."""

import argparse
import json
import select
import sys
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from flettner.agent.api.client import ApiClient, Json, RefusedError, UnreachableError
from flettner.tools.cli.exits import OK
from flettner.tools.cli.remote_command import path, print_answer
from flettner.tools.terminal.capabilities import has_screen
from flettner.tools.terminal.fullscreen import open_screen
from flettner.tools.terminal.messages import complain
from flettner.tools.terminal.values import escape_text

POLL_S = 1.0


def show_resources(
    args: argparse.Namespace,
    daemon: ApiClient,
    kind: str,
    name: str | None,
    *,
    key: str,
    text: Callable[[list[Json]], str],
    line: Callable[[Json], str],
    query: Mapping[str, str] | None = None,
) -> int:
    """Show the resource of this name, or all that match the query: once, or with --watch as they change.

    `text` formats all of them for a screen, `line` formats the resource whose name is under `key`.
    """
    filters = f"?{urlencode(query)}" if query else ""

    def fetch() -> Json:
        return daemon.get(f"/v1/{kind}{filters}" if name is None else path(kind, name))

    def resources_in(answer: Json) -> list[Json]:
        return list(answer[kind]) if name is None else [answer]

    if args.watch:
        format_one = json.dumps if args.json else line
        return watch(
            lambda: text(resources_in(fetch())),
            lambda: {each[key]: format_one(each) for each in resources_in(fetch())},
            as_json=args.json,
        )
    answer = fetch()
    return print_answer(args, answer, text(resources_in(answer)))


def watch(screen: Callable[[], str], lines: Callable[[], Mapping[str, str]], *, as_json: bool = False) -> int:
    """In a terminal redraw `screen` when it changes; elsewhere write each of the named `lines` that changes.

    An error of the first call is raised. Later errors are shown and the call is repeated, because a daemon
    may restart.
    """
    try:
        if has_screen() and not as_json:
            _redraw(screen)
        else:
            _print_changes(lines)
    except KeyboardInterrupt:
        pass
    return OK


def _redraw(fetch: Callable[[], str]) -> None:
    text, failure = fetch(), ""
    with open_screen() as screen:
        while True:
            screen.draw(text, failure)
            if screen.is_quit(within_s=POLL_S):
                return
            try:
                text, failure = fetch(), ""
            except (UnreachableError, RefusedError) as error:
                failure = f"no response, trying again: {escape_text(error)}"


def _print_changes(fetch: Callable[[], Mapping[str, str]]) -> None:
    printed: Mapping[str, str] = {}
    lines, failure = fetch(), ""
    closed = select.poll()
    closed.register(sys.stdout, 0)  # poll(2) reports a closed pipe unasked
    while True:
        for name, line in lines.items():
            if printed.get(name) != line:
                sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        printed = lines
        if closed.poll(POLL_S * 1000):
            raise BrokenPipeError("the reader of stdout is gone")
        try:
            lines, failure = fetch(), ""
        except (UnreachableError, RefusedError) as error:
            if str(error) != failure:
                complain(f"{error}; trying again")
            failure = str(error)
