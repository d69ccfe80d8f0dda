"""The statuses of a suggestion. A module of its own: the CLI needs them, but not the state."""

from typing import Literal

SuggestionStatus = Literal[
    "checking", "open", "approved", "denied", "expired", "superseded", "withdrawn", "refused"
]
"""`checking`: the preflight runs; there is no digest yet. `refused`: by the preflight. `superseded`: by
another one, or as the servers changed. `withdrawn`: its evidence is gone."""
