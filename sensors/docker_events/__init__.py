"""The events of the containers of a target."""
