"""`trimtab top`: all targets at a glance, live in a terminal."""

import argparse

from agent.cli import Subparsers
from agent.cli.asking import add, show
from agent.cli.link import Json, Link
from agent.cli.tables import table
from agent.cli.terminal import has_screen
from agent.cli.watch import watched

HEAD = (
    "TARGET",
    "PHASE",
    "GREEN",
    "TRAFFIC",
    "GOODPUT",
    "SLO MET",
    "RUNNING",
    "QUEUE",
    "KV",
    "TTFT P95",
    "NOTE",
)


def register(subparsers: Subparsers) -> None:
    says = "live: every target's traffic, SLO, queue, KV cache and phase; once where nobody looks"
    add(subparsers, "top", _top, says)


def _top(args: argparse.Namespace, daemon: Link) -> int:
    def screen() -> str:
        return top_text(daemon.get("/v1/targets")["targets"])

    if has_screen() and not args.json:
        return watched(screen, dict)
    answer = daemon.get("/v1/targets")
    return show(args, answer, top_text(answer["targets"]))


def top_text(targets: list[Json]) -> str:
    return table(HEAD, [_row(target) for target in targets]) if targets else "no targets\n"


def _row(target: Json) -> tuple[str, ...]:
    reading = target["reading"] or {}
    requests = sum((reading.get("requests") or {}).values())
    budget, kv = target["budget"], reading.get("kv_usage")
    ttft = target["ttft_p95_s"]
    return (
        target["name"],
        target["phase"] + (" (paused)" if target["paused"] else ""),
        _green(target["servers"]),
        f"{requests / reading['span_s']:.1f}/s" if requests else "-",
        "-" if target["goodput_rps"] is None else f"{target['goodput_rps']:.1f}/s",
        f"{1 - budget[0]['bad'] / budget[0]['of']:.2%}" if budget else "-",
        f"{reading['running']['mean']:.0f}" if reading else "-",
        f"{reading['waiting']['mean']:.0f}" if reading else "-",
        f"{kv['mean']:.0%}" if kv else "-",
        "-" if ttft is None else f"{ttft * 1000:.0f} ms",
        target["note"],
    )


def _green(servers: list[Json]) -> str:
    """The share of the traffic that new servers have."""
    green = [server["weight"] or 0 for server in servers if server["color"] == "green"]
    return f"{sum(green)} %" if green else "-"
