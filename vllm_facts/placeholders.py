"""Marks of templates, which stand for a value that is filled in later: no values, and no faults either."""

import re

_MARK = re.compile(
    r"\$|\{\{-?[ \t]?[.\w$]|<[^<>\n]{1,80}>"
    r"|^(?:\[[A-Z][A-Z0-9_ ]{1,60}\]|%\w{2,60}%|@\w{2,60}@|__[A-Za-z]\w{0,60}__"
    r"|\{[A-Za-z_][\w.]{0,60}\}|X{2,20})$"
    r"|^(?:REPLACE|CHANGE|INSERT|FILL|TODO|FIXME|TBD)(?:$|[_ -]|ME\b|THIS\b)"
    r"|(?:^|[^A-Za-z])[Yy](?:OUR|our)[_-]"
)
_NAME = re.compile(r"[A-Z][A-Z0-9]{0,40}(?:[_-][A-Z0-9]{1,40}){0,9}")


def is_placeholder(value: object, *, number: bool = False) -> bool:
    """`number`: where a number is wanted, so that a name in capitals stands for one, too."""
    if not isinstance(value, str):
        return False
    return _MARK.search(value) is not None or (number and _NAME.fullmatch(value) is not None)
