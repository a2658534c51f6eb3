"""A real browser without a window, for the pages. Missing, the tests that need it are skipped."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A Selenium driver; what pages log goes to its `browser` log."""
    selenium = pytest.importorskip("selenium", reason="needs the browser extra")
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("needs chromium and chromedriver (apt-get install chromium chromium-driver)")
    from selenium import webdriver

    options = selenium.webdriver.ChromeOptions()
    options.binary_location = browser
    # Root may not use the browser's own sandbox; the pages are ours.
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{argument}")
    options.add_argument("--window-size=1280,900")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    own = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        own.set_page_load_timeout(120)
        own.set_script_timeout(120)
        yield own
    finally:
        own.quit()


def complaints(driver: Any) -> list[str]:
    """Errors and warnings that the page caused, refused requests among them."""
    entries = driver.get_log("browser")
    return [e["message"] for e in entries if e["level"] in ("SEVERE", "WARNING")]
