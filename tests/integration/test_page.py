"""The page in a real Chromium, before real services."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from penstock.local.free_ports import free_port
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.servers.browser import Browser
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import CaptureSite, wait_for_phase
from tests.servers.fault_proxy import FaultProxy
from tests.servers.page_stage import PageStage
from tests.servers.shapes_fixtures import Serve
from tests.servers.shapes_site import ShapesSite, shape_lines

TOKEN = "planted-token-5f1c2e9a"
ROW = "planted-row-value-77"
PASSWORD = "planted-password-31"
AWS_SECRET = "planted-aws-secret-88"
NARROW = 400
LONG = 240.0


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def fault_proxy(kinesis: LocalKinesis) -> Iterator[FaultProxy]:
    """A Kinesis that takes what is signed with our planted secret."""
    with FaultProxy(kinesis.endpoint_url, secret_key=AWS_SECRET) as proxy:
        yield proxy


@pytest.fixture
def site(
    postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str, fault_proxy: FaultProxy
) -> CaptureSite:
    site = CaptureSite(
        postgres,
        database,
        kinesis,
        stream,
        AWS_ENDPOINT_URL_KINESIS=fault_proxy.url,
        AWS_SECRET_ACCESS_KEY=AWS_SECRET,
        PGPASSWORD=PASSWORD,
        SINK_OUTAGE_DISCONNECT_S=1,
        STANDBY_RETRY_INTERVAL_S=0.5,
    )
    site.psql("CREATE TABLE t (id int PRIMARY KEY, v text)")
    return site


def url_of(process: CaptureProcess) -> str:
    return str(process.wait_for_log("started")["ops"])


def log_in(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.type("#token", "not-the-token-at-all\n")
    browser.wait_for("#wrong", "This is not the token.")
    browser.type("#token", f"{TOKEN}\n")
    browser.wait_for("#headline", "ready")


def fits(browser: Browser) -> bool:
    return bool(browser.run("return document.documentElement.scrollWidth <= window.innerWidth"))


def test_an_outage_and_its_end(browser: Browser, site: CaptureSite, fault_proxy: FaultProxy) -> None:
    with site.capture(OPS_TOKEN=TOKEN) as capture:
        capture.wait_for_log("streaming")
        url = url_of(capture)
        log_in(browser, url)
        browser.wait_for("#headline", "streaming, ready")
        assert browser.text("#trouble") == "No."
        assert browser.text("h1") == "penstock capture"
        [cookie] = browser.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["value"] != TOKEN) == (True, "Strict", True)

        site.psql(f"INSERT INTO t SELECT i, '{ROW}' FROM generate_series(1, 120) i")
        browser.wait_for("#facts dd", "120 records accepted")
        assert len(browser.texts("figure")) == 5
        assert_axes(browser)

        fault_proxy.outage()
        site.psql(f"UPDATE t SET v = v || '{ROW}' WHERE id = 1")
        browser.wait_for("#headline", "NOT READY", timeout=8)
        browser.wait_for(".trouble .what", "sink: ")
        assert "see that Kinesis can be reached" in browser.text(".trouble .do")
        browser.wait_for("#facts dd", "since the oldest change was committed that is not delivered")
        assert browser.run("return document.title").startswith("NOT READY")
        told = everything_told(browser, capture)

        fault_proxy.restore()
        browser.wait_for("#headline", "streaming, ready")
        browser.wait_for("#trouble", "No.")
        browser.wait_for("#facts dd", "121 records accepted")

        path = "return document.querySelector('figure[data-series=behind_s] path.line').getAttribute('d')"
        browser.wait(lambda: "L" in browser.run(path), "a line between two points")
        by_keyboard(browser)
        for scheme in ("light", "dark"):
            browser.prefer(scheme)
            browser.resize(NARROW, 900)
            assert fits(browser)
        browser.prefer("light")
        assert TOKEN not in browser.run("return document.documentElement.outerHTML + location.href")
        addresses = browser.requested()
        assert addresses
        assert [each for each in addresses if not each.startswith(f"{url}/")] == []
        assert browser.complaints() == []
    for secret in (TOKEN, ROW, PASSWORD, AWS_SECRET):
        assert secret not in told


def everything_told(browser: Browser, capture: CaptureProcess) -> str:
    """All that can be read: with the token, without it, in the page and in the log."""
    shown = browser.run("return document.documentElement.outerHTML")
    asked = browser.run(
        "return Promise.all(['/status', '/metrics', '/readyz', '/livez'].map((path) =>"
        " fetch(path).then((answer) => answer.text())))"
    )
    told = json.dumps([shown, asked, capture.log_text()])
    assert "penstock_behind_seconds" in told
    assert "sink_down" in told
    return told


def by_keyboard(browser: Browser) -> None:
    """From the top, everything that can be used gets the focus, and can be used."""
    browser.run("document.activeElement.blur()")
    seen = []
    for _ in range(8):
        browser.press(Keys.TAB)
        seen.append(
            browser.run("return document.activeElement.dataset.series || document.activeElement.tagName")
        )
    assert seen[:2] == ["BUTTON", "SELECT"]
    assert seen[2:7] == ["behind_s", "lag_bytes", "rate", "fill", "retained_bytes"]
    browser.run("document.querySelector('figure').focus()")
    browser.press(Keys.ARROW_LEFT)
    browser.wait_for("figure[data-series=behind_s] output", " at ")
    keys_on_a_chart(browser)


def keys_on_a_chart(browser: Browser) -> None:
    """Home and End go to its ends, and leave the page where it is."""
    # Chromium scrolls some frames later; whether it is going to is known at once.
    browser.run(
        "window.kept = [];"
        " addEventListener('keydown', (event) => window.kept.push([event.key, event.defaultPrevented]))"
    )
    place = "return document.querySelector('figure .cursor').getAttribute('x1')"
    browser.press(Keys.HOME)
    first = float(browser.run(place))
    browser.press(Keys.END)
    assert float(browser.run(place)) > first
    assert browser.run("return window.kept") == [["Home", True], ["End", True]]


def assert_axes(browser: Browser) -> None:
    """Every chart says in text what its height and its width mean."""
    axes = browser.run(
        "return [...document.querySelectorAll('figure svg')].map((chart) =>"
        " [...chart.querySelectorAll('text')].map((text) => text.textContent))"
    )
    assert axes
    for *heights, start, middle, end in axes:
        assert [start, middle, end] == ["−30 min", "−15 min", "now"]
        assert len(set(heights)) == len(heights) == 3, heights
        assert re.fullmatch(r"0( [a-zA-Z%]+)?", heights[0]), heights
        assert all(re.fullmatch(r"[\d.,]+( [a-zA-Z%]+)?", height) for height in heights), heights


def test_a_standby_takes_over_and_is_gone(browser: Browser, site: CaptureSite) -> None:
    with site.capture() as leader:
        leader.wait_for_log("streaming")
        with site.capture() as standby:
            wait_for_phase(standby, "standby")
            takeover(browser, site, leader, standby)


def takeover(browser: Browser, site: CaptureSite, leader: CaptureProcess, standby: CaptureProcess) -> None:
    browser.open(url_of(standby))
    browser.wait_for("#headline", "standby, ready")
    browser.wait_for("#trouble", "This process stands by, ready to lead.")
    assert "leader" in browser.texts("#facts dt")
    browser.wait_for("#facts dd", ", pid ")
    leader.kill9()
    browser.wait_for("#headline", "streaming, ready")
    browser.wait_for("#facts dd", "this process")
    site.psql("INSERT INTO t VALUES (1, 'x')")
    browser.wait_for("#facts dd", "1 records accepted")
    standby.kill9()
    browser.wait_for("#stale", "This process has not answered since")
    assert browser.complaints() == []


def test_a_standby_of_shapes(browser: Browser) -> None:
    with PageStage(shapes=3) as stage:
        browser.open(stage.url)
        browser.wait_for("#headline", "streaming, ready")
        browser.wait_for("#rows tr", "orders")
        stage.stand_by("shapes s at 10.0.0.7, pid 7")
        browser.wait_for("#headline", "standby, ready")
        browser.wait_for("#trouble", "This process stands by, ready to lead.")
        assert browser.text("h1") == "penstock shapes"
        browser.wait_for("#facts dd", "10.0.0.7, pid 7")
        browser.wait(lambda: not browser.texts("#rows tr"), "nothing is said of shapes that another leads")
        assert browser.complaints() == []


def shapes_by_keyboard(browser: Browser) -> None:
    browser.run("document.activeElement.blur()")
    seen = []
    for _ in range(8):
        browser.press(Keys.TAB)
        seen.append(browser.run("return document.activeElement.dataset.series || document.activeElement.id"))
    charts = ["behind_s", "lag_bytes", "rate", "log_bytes", "failing", "retained_bytes"]
    assert seen == ["find-text", "span", *charts]
    browser.run("document.querySelector('#find-text').focus()")
    browser.press("kep")
    browser.wait_for("#found", "1 of 2 shapes")
    browser.press(Keys.BACKSPACE, Keys.BACKSPACE, Keys.BACKSPACE)
    browser.wait(lambda: browser.text("#found") == "2 shapes", "all are back")


@pytest.mark.timeout(900)
def test_a_failing_shape(
    browser: Browser, postgres: PrivatePostgres, database: str, tmp_path: Path, serve: Serve
) -> None:
    site = ShapesSite(postgres, database, tmp_path)
    for name in ("kept", "lost"):
        site.sql(f"CREATE TABLE {name} (id int PRIMARY KEY, v text); INSERT INTO {name} VALUES (1, '{ROW}')")
    site.write_file(shape_lines("kept"), shape_lines("lost"))
    port = free_port()

    def story() -> None:
        deadline = time.monotonic() + LONG
        while time.monotonic() < deadline:
            browser.open(f"http://127.0.0.1:{port}/")
            if "ready" in browser.text("#headline").lower():
                break
            time.sleep(0.2)
        browser.wait_for("#rows tr", "kept", timeout=LONG)
        browser.wait(
            lambda: browser.texts("#rows tr td.lag").count("up to date") == 2, "both are copied", LONG
        )
        assert browser.text("#trouble") == "No."
        assert browser.text("#found") == "2 shapes"
        assert len(browser.texts("figure")) == 6
        assert_axes(browser)
        shapes_by_keyboard(browser)
        site.sql("DROP TABLE lost; INSERT INTO kept VALUES (2, 'new')")
        browser.wait_for("#rows tr.note", "public.lost was dropped or renamed", timeout=LONG)
        assert browser.texts("#rows th")[0] == "lost", "those that fail come first"
        browser.wait_for("#trouble", "shape lost fails: public.lost was dropped or renamed")
        assert browser.text(".do")
        browser.wait_for("#rows tr", "2", timeout=LONG)
        browser.resize(NARROW, 900)
        assert fits(browser)
        browser.type("#find-text", "kep")
        browser.wait_for("#found", "1 of 2 shapes")
        assert browser.texts("#rows th") == ["kept"]
        assert ROW not in browser.run("return document.documentElement.outerHTML")
        site.sql("CREATE TABLE lost (id int PRIMARY KEY, v text)")
        browser.wait_for("#trouble", "No.", timeout=LONG)
        assert browser.complaints() == []

    serve(site, story, OPS_PORT=str(port))
