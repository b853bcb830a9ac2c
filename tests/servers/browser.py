"""A real Chromium, headless, with nothing but this machine to talk to."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

_T = TypeVar("_T")
_CHROMIUM = Path("/usr/bin/chromium")
_DRIVER = Path("/usr/bin/chromedriver")
# As root there is no sandbox to be had; the rest keeps it from calling home.
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
)


class Browser:
    """One window. Conditions are waited for, and named when they don't come about."""

    def __init__(self, profile: Path) -> None:
        for program in (_CHROMIUM, _DRIVER):
            assert program.exists(), f"{program} is missing: run make setup as root"
        options = webdriver.ChromeOptions()
        options.binary_location = str(_CHROMIUM)
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self._driver = webdriver.Chrome(options, Service(str(_DRIVER)))
        self._driver.set_page_load_timeout(20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._driver.quit()

    def open(self, url: str, *, width: int = 1200, height: int = 1000) -> None:
        """Show a page in a window of that size."""
        self.resize(width, height)
        self._driver.get(url)

    def resize(self, width: int, height: int) -> None:
        """The inside of the window; a real one is never as narrow as a telephone."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def prefer(self, scheme: str) -> None:
        """`light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def text(self, css: str) -> str:
        """What is to be read in the first element of that kind; nothing if there is none."""
        return next(iter(self.texts(css)), "")

    def texts(self, css: str) -> list[str]:
        """The same of all of them that can be seen."""
        try:
            found = self._driver.find_elements(By.CSS_SELECTOR, css)
            return [each.text for each in found if each.is_displayed()]
        except StaleElementReferenceException:
            return self.texts(css)

    def type(self, css: str, keys: str) -> None:
        """Into an element."""
        self._driver.find_element(By.CSS_SELECTOR, css).send_keys(keys)

    def press(self, *keys: str) -> None:
        """On whatever has the focus."""
        ActionChains(self._driver).send_keys(*keys).perform()

    def run(self, script: str) -> Any:
        """What a piece of JavaScript returns."""
        return self._driver.execute_script(script)

    def wait(self, ask: Callable[[], _T | None], what: str, timeout: float = 15.0) -> _T:
        """Ask until the answer is true, and give it."""
        deadline = time.monotonic() + timeout
        while not (answer := ask()):
            assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}:\n{self.text('body')}"
            time.sleep(0.1)
        return answer

    def wait_for(self, css: str, part: str, timeout: float = 15.0) -> str:
        """Wait until an element of that kind says this."""

        def said() -> str | None:
            return next((text for text in self.texts(css) if part in text), None)

        return self.wait(said, f"{css} says {part!r}", timeout)

    def cookies(self) -> list[dict[str, Any]]:
        """All that it has for this page."""
        cookies: list[dict[str, Any]] = self._driver.get_cookies()
        return cookies

    def complaints(self) -> list[str]:
        """Errors since the last call: of scripts, and of the content security policy; not of the network."""
        entries = self._driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [
            each["message"] for each in entries if each["level"] == "SEVERE" and each["source"] != "network"
        ]

    def requested(self) -> list[str]:
        """The addresses of everything that was asked of a server since the last call."""
        log = self._driver.get_log("performance")  # type: ignore[no-untyped-call]
        messages = [json.loads(each["message"])["message"] for each in log]
        sent = [each["params"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        return [url for each in sent if (url := each["request"]["url"]).startswith(("http", "ws"))]

    def picture(self, path: Path) -> None:
        """What the window shows."""
        assert self._driver.save_screenshot(str(path))
