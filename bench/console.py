"""Time to paint and size of the console's first page, with 20 targets and 24 hours each, in Chromium.

python -m bench.console [--targets 20] [--times 5]
"""

import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from bench.results import new_parser, write
from tests.support.console_data import scenery
from tests.support.console_site import Site, site

CHROMIUM = "/usr/bin/chromium"
PAGES = {"targets": ("/targets", ".spark path"), "target": ("/targets/chat", ".chart canvas")}
TIMES = """() => {
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  const all = performance.getEntries();
  return {
    first_paint_ms: paint.startTime,
    data_ms: performance.now(),
    kB: all.reduce((sum, one) => sum + (one.transferSize || 0), 0) / 1000,
    requests: all.filter((one) => "transferSize" in one).length,
  };
}"""


def measured(browser: Browser, place: Site, path: str, last: str) -> dict[str, float]:
    """Measure a visit without a cache. `data_ms`: until the page is drawn. `cpu_ms`: CPU time of the main
    thread until then, which other load on the machine does not increase."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    meter = context.new_cdp_session(page)
    meter.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.add_init_script(f"sessionStorage.setItem('flettner.token', {place.token['viewer']!r})")
    page.goto(f"{place.url}/#{path}")
    page.wait_for_selector(last, state="attached")
    times: dict[str, float] = page.evaluate(TIMES)
    metrics = {metric["name"]: metric["value"] for metric in meter.send("Performance.getMetrics")["metrics"]}
    times["cpu_ms"] = metrics["TaskDuration"] * 1000
    context.close()
    return times


def main() -> None:
    parser = new_parser("bench.console", __doc__, "console.json")
    parser.add_argument("--targets", type=int, default=20)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    daemon = scenery(targets=options.targets, hours=24)
    with (
        tempfile.TemporaryDirectory() as folder,
        site(daemon, Path(folder)) as place,
        sync_playwright() as playwright,
    ):
        args = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=args)
        report: dict[str, Any] = {"targets": options.targets, "load": os.getloadavg()[0]}
        for name, (path, last) in PAGES.items():
            runs = [measured(browser, place, path, last) for _ in range(options.times)]
            report[name] = {key: round(statistics.median(run[key] for run in runs), 1) for key in runs[0]} | {
                "first_paint_worst_ms": round(max(run["first_paint_ms"] for run in runs), 1)
            }
        browser.close()
    write(options.json, report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
