"""The labels of flettner's containers that both the engine and the sensor of container events know."""

from typing import Final

TARGET: Final = "flettner.target"
SERVER: Final = "flettner.server"
SITE: Final = "flettner.site"  # keeps the containers of two daemons on one host apart
