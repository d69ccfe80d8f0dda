"""The result of each upgrade, and the table by release."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.upgrades.releases import Release

HEAD = ("release", "engine", "upgrades", "right", "ended as", "exposed", "bad", "lost", "minutes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """`engine`: "virtual", or that of a site. `outcome`: as recorded, or "refused" before the approval.

    `failures`: what clients saw, with its number; empty in virtual time.
    """

    release: str
    engine: str
    seed: int
    rate: float  # requests per second
    outcome: str
    why: str
    right: bool
    weight: int  # share of green at the end, percent
    exposed: int
    bad: int
    lost: int
    sent: int
    minutes: float
    failures: Mapping[str, int] = field(default_factory=dict)


def line(upgrade: Upgrade) -> str:
    is_right = "right" if upgrade.right else "WRONG"
    seen = "".join(f"\n    {count} times {failure}" for failure, count in upgrade.failures.items())
    return (
        f"{upgrade.release:<20} {upgrade.engine:<8} {upgrade.rate:>4g}/s {upgrade.seed:>4} {is_right} "
        f"{upgrade.outcome:<12} {upgrade.weight:>3}% exposed {upgrade.exposed:>5}, bad {upgrade.bad:>4}, "
        f"lost {upgrade.lost} of {upgrade.sent}, {upgrade.minutes:.1f} min  {upgrade.why[:160]}{seen}"
    )


def table(upgrades: Sequence[Upgrade], releases: Iterable[Release]) -> str:
    """Markdown: a row for each release and engine; exposure and minutes as median and most."""
    by_row: dict[tuple[str, str], list[Upgrade]] = defaultdict(list)
    for upgrade in upgrades:
        by_row[upgrade.release, upgrade.engine].append(upgrade)
    rows = [HEAD, ("---",) * len(HEAD)]
    names = [release.name for release in releases]
    for (name, engine), same in sorted(by_row.items(), key=lambda row: (names.index(row[0][0]), row[0][1])):
        rows.append(
            (
                name,
                engine,
                f"{len(same)}",
                f"{sum(upgrade.right for upgrade in same)}",
                ", ".join(sorted({upgrade.outcome for upgrade in same})),
                _spread([upgrade.exposed for upgrade in same]),
                _spread([upgrade.bad for upgrade in same]),
                f"{sum(upgrade.lost for upgrade in same)}",
                _spread([upgrade.minutes for upgrade in same]),
            )
        )
    right, lost = sum(upgrade.right for upgrade in upgrades), sum(upgrade.lost for upgrade in upgrades)
    whole = f"{right} of {len(upgrades)} right, {lost} requests lost of {sum(u.sent for u in upgrades)}"
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", whole])


def _spread(values: Sequence[float]) -> str:
    middle, most = median(values), max(values)
    return f"{middle:g}" if middle == most else f"{middle:g} (most {most:g})"
