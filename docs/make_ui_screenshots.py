"""Take pictures of the page of `keyless ui`, for docs/ui.md.

Run `python docs/make_ui_screenshots.py` after a change to the page, and look at docs/screenshots/ui-*.png. It links the
demo's tables through the page. Needs `pip install ".[ui,browser]"` and a Chromium on the path or in
`KEYLESS_CHROMIUM`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from make_screenshots import FOLDER, chromium
from playwright.sync_api import Page, expect, sync_playwright

import keyless

PATIENCE = 300_000
"""Milliseconds that the link may take."""


def main() -> None:
    """Start the page in a folder with two tables, and walk through it."""
    program = chromium()
    with tempfile.TemporaryDirectory() as folder:
        tables, _ = keyless.datasets.load_shuffled_tumours(observed=0.97, random_state=0)
        for name, letter in (("means", "M"), ("worst", "W")):
            ids = [f"{letter}{k:03d}" for k in range(len(tables[name]))]
            tables[name].insert(0, "sample", ids)
            tables[name].to_csv(Path(folder) / f"{name}.csv", index=False)
        command = [sys.executable, "-c", "from keyless.cli import main; main()", "ui", folder, "--no-browser"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            address = re.search(r"http://\S+", server.stderr.readline() if server.stderr else "")
            if address is None:
                sys.exit("the page did not start")
            with sync_playwright() as running:
                browser = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
                view = browser.new_page(viewport={"width": 1100, "height": 900})
                view.goto(address[0])
                walk(view)
                browser.close()
        finally:
            server.terminate()
            server.wait()


def walk(view: Page) -> None:
    """Go from the tables to the review, with a picture on the way of each page."""
    for file in ("means.csv", "worst.csv"):
        view.check(f"input[value='{file}']")
    take(view, "tables")
    view.click("#look")
    expect(view.locator(".columns[aria-busy=false] tbody")).to_have_count(2, timeout=PATIENCE)
    take(view, "columns")
    view.click("button.main")
    expect(view.locator(".stages .now")).to_contain_text(" left", timeout=PATIENCE)
    take(view, "work", height=480)
    view.wait_for_url("**/run?at=run", timeout=PATIENCE)
    view.wait_for_selector("html[data-ready=yes]", timeout=PATIENCE)
    take(view, "result", height=1250)
    view.click("#match-rows button")
    view.wait_for_selector("#row-part h2")
    take(view, "row")
    view.click("#row-close")
    view.get_by_role("link", name="Review").click()
    view.wait_for_selector("#counts")
    take(view, "review", height=1050)


def take(view: Page, name: str, *, height: int = 900) -> None:
    """Take one picture."""
    view.set_viewport_size({"width": 1100, "height": height})
    view.screenshot(path=FOLDER / f"ui-{name}.png")


if __name__ == "__main__":
    main()
