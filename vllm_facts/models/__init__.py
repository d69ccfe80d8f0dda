"""Models by name or `config.json`: sizes, layers, context length."""
