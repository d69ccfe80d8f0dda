"""Library: what every plugin that splits traffic needs."""
