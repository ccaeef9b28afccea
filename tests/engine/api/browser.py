# SPDX-License-Identifier: Apache-2.0
"""A real headless Chromium. Its calls block, so tests run them in a thread beside the server."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

PATIENCE_S = 20


class Browser:
    """One window."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, url: str, *, dark: bool = False, width: int = 1280, height: int = 900) -> None:
        """Open a page in a window of that size; what the page before complained of is forgotten."""
        self.driver.get("about:blank")
        self.complaints()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        self.driver.get(url)

    def find(self, selector: str) -> WebElement:
        """The first element."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """The visible text of all such elements."""
        return [element.text for element in self.driver.find_elements(By.CSS_SELECTOR, selector)]

    def wait_for_text(self, selector: str, words: str) -> str:
        """The text of an element once it has these words."""

        def has_words(_: Any) -> str | None:
            text = self.find(selector).text
            return text if words in text else None

        message = f"{selector} never said {words!r}"
        return str(WebDriverWait(self.driver, PATIENCE_S, 0.05).until(has_words, message))

    def wait_for_count(self, selector: str, count: int) -> None:
        """Wait until there are so many such elements."""
        message = f"there never were {count} of {selector}"
        WebDriverWait(self.driver, PATIENCE_S, 0.05).until(lambda _: len(self.texts(selector)) == count, message)

    def js(self, script: str) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script)

    def complaints(self) -> list[str]:
        """Errors and warnings of the console since the last call, refusals by the page's policy among them."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A browser, or a skip that says what is missing."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("the page is tested in a real browser: install chromium and chromium-driver")
    options = ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(chromedriver))
    with contextlib.ExitStack() as stack:
        stack.callback(driver.quit)
        yield Browser(driver)
