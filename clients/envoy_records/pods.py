"""How a pod of Envoy gives its records to the daemon: over HTTP, numbered.

The body of the answer is a series of msgpack values: a map, `[number, message]`, or nil when there is nothing
to send. The first one is a map with `BOOT` and `AFTER`.
"""

from typing import Final

PORT: Final = 8082
"""Of an Envoy pod: its readiness, what it has in force, its records."""

RECORDS_PATH: Final = "/records"
STATUS_PATH: Final = "/status"

BOOT: Final = "boot"  # differs for each run of the pod's program; parameter, and key of a map
AFTER: Final = "after"  # the number of the message before the next one; parameter, and key of a map
SINCE_S: Final = "since_s"  # parameter: the age of the messages to send where BOOT is another
LOST: Final = "lost"  # key of a map: messages before the next one are missing
END: Final = "end"  # key of a map: no message follows
