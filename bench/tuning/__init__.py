"""Which search finds a better setting, and what it costs the users, next to an exhaustive sweep."""
