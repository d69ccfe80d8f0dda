"""The TOML file: read, checked as a whole, turned into settings."""
