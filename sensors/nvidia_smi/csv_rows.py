"""Parses rows of `nvidia-smi --query-gpu --format=csv,noheader,nounits`, as drivers 535 to 610 print them.

NVIDIA does not guarantee a stable format (man page), so parsing is strict.
"""

import re
from collections.abc import Sequence

from flettner.agent.domain.errors import SensorError
from flettner.agent.domain.reading import Gpu

OLD_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}  # renamed with driver 535
FIELDS: tuple[str, ...] = (
    "index",
    "uuid",
    "utilization.gpu",
    "memory.used",
    "memory.reserved",
    "memory.total",
    "power.draw",
    "temperature.gpu",
    "clocks_event_reasons.active",
    "mig.mode.current",
    "name",  # last, so that a comma in it is harmless
)
NEEDED = frozenset({"index", "uuid", "name"})

_UNKNOWN_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')
_SHOWN = 120
_LONGEST_ROW = 1024  # a row has about 150 characters
_MOST_GPUS = 256  # of one host: the maximum number of rows in a tick
_MASK_BITS = 64
_LARGEST = 1e12  # MiB, W, °C: above any plausible value
EXITS = {
    2: "unknown field",
    4: "not permitted",
    6: "no NVIDIA device was found",
    9: "no NVIDIA driver: load it (modprobe nvidia), or let the service see its devices (nvidia.conf)",
    12: "the NVML library is missing: install the driver's libraries",
    13: "NVML library and driver versions differ: reboot after a driver update",
    15: "a GPU has fallen off the bus: reboot",
    255: "unknown option",
}
"""Meanings of the exit codes (nvidia-smi's man page, "Return value"); 2 and 255 as driver 580 uses them."""


def retry_fields(fields: Sequence[str], output: str) -> tuple[str, ...] | None:
    """Return the fields to query next if the driver rejected a field; None if `output` is another error."""
    refusal = _UNKNOWN_FIELD.search(output)
    if refusal is None or refusal[1] not in fields or refusal[1] in NEEDED:
        return None
    instead = OLD_NAMES.get(refusal[1])
    renamed = (instead if field == refusal[1] else field for field in fields)
    return tuple(field for field in renamed if field is not None)


def parse_gpu(row: str, fields: Sequence[str]) -> Gpu:
    """Parse a row. Raises SensorError for other columns, or a column that is neither a number nor `[N/A]`.

    An implausible number becomes None.
    """
    if len(row) > _LONGEST_ROW:
        raise SensorError(f"a row of more than {_LONGEST_ROW} characters: {row[:_SHOWN]!r}")
    cells = dict(zip(fields, row.strip().split(", ", len(fields) - 1), strict=False))
    if len(cells) != len(fields):
        raise SensorError(f"expected {len(fields)} columns: {row[:_SHOWN]!r}")
    utilization = _number(cells, "utilization.gpu", row, at_most=100)
    used, reserved = (_number(cells, name, row) for name in ("memory.used", "memory.reserved"))
    return Gpu(
        index=_index(cells["index"], row),
        uuid=cells["uuid"],
        name=cells["name"],
        utilization=None if utilization is None else utilization / 100,
        memory_used_mib=None if used is None else used + (reserved or 0.0),
        memory_total_mib=_number(cells, "memory.total", row),
        power_w=_number(cells, "power.draw", row),
        temperature_c=_number(cells, "temperature.gpu", row),
        throttle_reasons=_mask(cells, row),
        mig=cells.get("mig.mode.current") == "Enabled",
    )


def _is_unknown(cell: str) -> bool:
    """`[N/A]`, `N/A`, `[Not Supported]`, `[Unknown Error]`, `[Insufficient Permissions]`, ..."""
    return cell in {"", "N/A"} or (cell.startswith("[") and cell.endswith("]"))


def _index(cell: str, row: str) -> int:
    readable = cell.isascii() and cell.isdecimal() and len(cell) <= len(str(_MOST_GPUS))
    if not readable or int(cell) >= _MOST_GPUS:
        raise SensorError(f"no GPU index below {_MOST_GPUS} in {row[:_SHOWN]!r}")
    return int(cell)


def _number(cells: dict[str, str], field: str, row: str, at_most: float = _LARGEST) -> float | None:
    cell = cells.get(field, "")
    if _is_unknown(cell):
        return None
    try:
        value = float(cell)
    except ValueError as error:
        raise SensorError(f"{field} is {cell!r}, not a number, in {row[:_SHOWN]!r}") from error
    return value if 0 <= value <= at_most else None


def _mask(cells: dict[str, str], row: str) -> int | None:
    field = "clocks_event_reasons.active"
    cell = cells.get(field, cells.get(OLD_NAMES[field], ""))
    if _is_unknown(cell):
        return None
    try:
        mask = int(cell, 16)
    except ValueError as error:
        raise SensorError(f"{field} is {cell!r}, not a bit mask, in {row[:_SHOWN]!r}") from error
    return mask if 0 <= mask < 2**_MASK_BITS else None
