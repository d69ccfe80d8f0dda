"""The entry points of the installation."""
