"""Pictures of the console for the documentation: `python -m tests.integration.browser.pictures` writes them.

The tests compare them with the present pages in coarse blocks, as other fonts and versions of Chromium draw
other pixels. Chromium itself decodes both.
"""

import base64
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page, sync_playwright

from tests.integration.browser.conftest import CHROMIUM, ROOT
from tests.support.console_data import scenery
from tests.support.console_site import site

FOLDER = Path(__file__).parents[3] / "docs" / "pictures"
WIDTH, HEIGHT = 1280, 900
PICTURES = {"suggestion": "/suggestions/chat-s1", "rollout": "/rollouts/code-o3"}

_LIKENESS = """async ([a, b]) => {
  const blocks = async (png) => {
    const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${png}`)).blob());
    const canvas = new OffscreenCanvas(40, 28);
    const pen = canvas.getContext('2d');
    pen.imageSmoothingQuality = 'high';
    pen.drawImage(image, 0, 0, 40, 28);
    const bytes = pen.getImageData(0, 0, 40, 28).data;
    const grey = Array.from({length: 40 * 28}, (_, at) => bytes[4 * at + 1]);  // the green of a block
    const mean = grey.reduce((sum, value) => sum + value) / grey.length;
    return grey.map((value) => value - mean);
  };
  const [one, two] = [await blocks(a), await blocks(b)];
  const product = (left, right) => left.reduce((sum, value, at) => sum + value * right[at], 0);
  return product(one, two) / Math.sqrt(product(one, one) * product(two, two));
}"""


def file_of(name: str) -> Path:
    return FOLDER / f"console-{name}.png"


def measure_likeness(page: Page, first: bytes, second: bytes) -> float:
    """The correlation of the brightness of 40 by 28 blocks: 1 for equal pictures. The page draws nothing."""
    page.goto("about:blank")
    texts = [base64.b64encode(picture).decode() for picture in (first, second)]
    return float(page.evaluate(_LIKENESS, texts))


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    with (
        sync_playwright() as playwright,
        TemporaryDirectory() as folder,
        site(scenery(targets=2, hours=2), Path(folder)) as place,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ROOT))
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce")
        page.add_init_script(f"sessionStorage.setItem('flettner.token', {place.token['operator']!r})")
        for name, path in PICTURES.items():
            page.goto(f"{place.url}/#{path}")
            page.wait_for_selector("figure canvas")
            page.wait_for_timeout(500)
            file_of(name).write_bytes(page.screenshot())
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
