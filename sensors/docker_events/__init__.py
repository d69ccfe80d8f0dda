"""Report events of the containers of a target."""
