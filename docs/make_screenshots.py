"""Take pictures of the report: in the light, in the dark, on a phone, on paper, and of an opened row.

Run `python docs/make_screenshots.py` after a change to the report, and look at docs/screenshots/. It links the demo's
tables first; `python docs/make_screenshots.py run.keyless` takes a saved result. Needs `pip install ".[browser]"` and a
Chromium on the path or in `KEYLESS_CHROMIUM`.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

import keyless

FOLDER = Path(__file__).with_name("screenshots")
VIEWS = {
    "light": {"viewport": {"width": 1100, "height": 1300}},
    "dark": {"viewport": {"width": 1100, "height": 1300}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 1500}, "device_scale_factor": 1.5},
    "print": {"viewport": {"width": 720, "height": 1018}},
    "row": {"viewport": {"width": 1100, "height": 1100}},
}


def main() -> None:
    """Make the report and take the pictures."""
    if len(sys.argv) > 1:
        links = keyless.load(sys.argv[1])
    else:
        tables, _ = keyless.datasets.load_shuffled_tumours(observed=0.97, random_state=0)
        links = keyless.link(tables, random_state=0)
    program = chromium()
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as running:
        page = Path(folder) / "report.html"
        page.write_text(keyless.report.render(links), encoding="utf-8")
        browser = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name in VIEWS:
            take(browser, page, name)
        browser.close()


def chromium() -> str:
    """Return the program of the browser."""
    names = (os.environ.get("KEYLESS_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    program = next((found for name in names if name and (found := shutil.which(name))), None)
    if program is None:
        sys.exit("Chromium is not installed: name it in KEYLESS_CHROMIUM, or put it on the path")
    return program


def take(browser: Browser, page: Path, name: str) -> None:
    """Take one picture of what is seen first, or of an opened row."""
    view = browser.new_page(**VIEWS[name])
    if name == "print":
        view.emulate_media(media="print")
    view.goto(page.as_uri())
    view.wait_for_selector("html[data-ready=yes]")
    if name == "row":
        view.locator("#match-rows button").first.click()
        view.evaluate("document.documentElement.style.scrollBehavior = 'auto'; location.hash = 'match-panel'")
    view.screenshot(path=FOLDER / f"{name}.png")
    view.close()


if __name__ == "__main__":
    main()
