"""The daemon's face to people and programs: REST, server-sent events, metrics."""
