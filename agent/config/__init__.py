"""The TOML config file: parsed, validated as a whole, converted to values of the core."""
