"""The page end to end in a headless Chromium: sliders, charts, files, links, widths and modes.

Run by ``make test-browser``; skipped where no Chromium with its driver can be had. Screenshots go
to ``out/browser``.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from sim.metrics import summary
from sim.scenario import Scenario, load_scenario
from sim.simulation import simulate
from tests.ui.conftest import number
from ui.share import from_link, scenario_toml, to_link

pytestmark = pytest.mark.browser
webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium (extra dev)")
ActionChains = pytest.importorskip("selenium.webdriver.common.action_chains").ActionChains
By = pytest.importorskip("selenium.webdriver.common.by").By
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys

ROOT = Path(__file__).resolve().parents[2]
SHOTS = ROOT / "out" / "browser"
FILE = 'input[type="file"]'
TEXT = "return document.body.innerText"
PATIENCE_S = 240  # the first run on a machine compiles the engine
SMALL = Scenario(name="small", workload={"named": "chat", "duration_s": 20})
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# An address below the root is asked for first, and falls back to the root: Streamlit's own way.
HARMLESS = ("_stcore/health", "_stcore/host-config")
PAGES = ("what-if", "compare", "inside", "roofline", "plan", "catalog", "validation")
WIDTHS = (1280, 390)  # pixel: a desk and a telephone
PRESSED = {"plan": "Compute", "validation": "Replay"}  # page -> what starts its work
TALL = 8000  # pixel, of a page at most


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def server():
    """The explorer as `roofcast explore` starts it, on a free port of this machine."""
    port = free_port()
    command = [sys.executable, "-m", "sim", "explore", "--no-browser", "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        url, end = f"http://localhost:{port}", time.monotonic() + 60
        try:
            while not is_up(url):
                assert process.poll() is None, "the server ended"
                assert time.monotonic() < end, "the server did not answer within 60 s"
                time.sleep(0.3)
            yield url
        finally:
            os.killpg(process.pid, 15)


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A headless Chromium that keeps downloads in a folder of the test."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    tool = shutil.which("chromedriver")
    if not browser or not tool:
        pytest.skip("needs chromium and chromedriver on the path")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    folder = tmp_path_factory.mktemp("downloads")
    options.add_experimental_option("prefs", {"download.default_directory": str(folder)})
    service = webdriver.ChromeService(tool)
    with webdriver.Chrome(options=options, service=service) as opened:
        opened.downloads = folder
        look(opened)
        yield opened


def look(driver, width: int = 1280, height: int = 1800, mode: str = "light") -> None:
    """Set the size of the window and the reader's light or dark setting."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": mode}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def busy(driver, advice: bool) -> list[str]:
    """Return what is at work: the script, and jobs; that of the advice only if it matters."""
    script = "const a = document.querySelector('[data-test-script-state]');"
    state = driver.execute_script(f"{script} return a ? a.dataset.testScriptState : 'none'")
    bars = "return [...document.querySelectorAll('[data-testid=\"stProgress\"]')]"
    works = driver.execute_script(f"{bars}.map(e => e.innerText)")
    found = [text for text in works if advice or not text.startswith(("trying", "starting"))]
    return found if state == "notRunning" else [*found, state]


def settle(driver, advice: bool = False) -> str:
    """Wait until the page stands still, with no work in progress; return its text.

    Trying changes goes on behind the page and takes longest, so it is waited for only if asked.
    """
    before, same, end = "", 0, time.monotonic() + PATIENCE_S
    while same < 3:
        works, text = busy(driver, advice), str(driver.execute_script(TEXT))
        steady = text == before if advice else len(text) > 200
        same = same + 1 if steady and not works else 0
        if time.monotonic() > end:
            raise TimeoutError(f"no rest within {PATIENCE_S} s: {works} {text[-300:]}")
        before = text
        time.sleep(0.3)
    return before


def until(driver, true, what: str) -> str:
    """Wait until something is true and then until the page rests; return its text."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {PATIENCE_S} s: {what}")
        time.sleep(0.2)
    return settle(driver)


def console(driver) -> list[str]:
    """Return errors of the browser's console."""
    errors = [e["message"] for e in driver.get_log("browser") if e["level"] == "SEVERE"]
    return [text for text in errors if not any(word in text for word in HARMLESS)]


def card(driver, label: str) -> str:
    """Return what a card says."""
    for one in driver.find_elements(By.CSS_SELECTOR, '[data-testid="stMetric"]'):
        lines = one.text.splitlines()
        if lines and lines[0] == label:
            return lines[1]
    raise LookupError(label)


def slider(driver, label: str):
    return driver.find_element(By.CSS_SELECTOR, f'input[type="range"][aria-label^="{label}"]')


def address(driver) -> Scenario:
    """Return the scenario that the address carries."""
    return from_link(driver.current_url.split("s=")[1].split("&")[0])


def move(driver, label: str, times: int = 1) -> None:
    """Move a slider by the keyboard, and wait for what follows."""
    before, place = address(driver), slider(driver, label)
    driver.execute_script("arguments[0].focus()", place)
    ActionChains(driver).send_keys(*[Keys.ARROW_RIGHT] * times).perform()
    until(driver, lambda: address(driver) != before, f"{label} moved")


def drawing(driver) -> str:
    """Return the picture of the first chart."""
    chart = driver.find_element(By.CSS_SELECTOR, '[data-testid="stVegaLiteChart"]')
    return str(chart.screenshot_as_base64)


def press(driver, words: str) -> None:
    path = f"//button[contains(normalize-space(.), '{words}')]"
    driver.find_element(By.XPATH, path).click()


def shoot(driver, name: str, width: int, mode: str) -> None:
    """Keep a picture of the whole page, under its heading and all that is below."""
    look(driver, width, mode=mode)
    settle(driver, advice=True)
    script = "return document.querySelector('[data-testid=\"stMain\"]').scrollHeight"
    look(driver, width, min(int(driver.execute_script(script)) + 1, TALL), mode)
    settle(driver, advice=True)
    SHOTS.mkdir(parents=True, exist_ok=True)
    driver.save_screenshot(str(SHOTS / f"{name}-{width}-{mode}.png"))


@pytest.fixture
def opened(server, driver):
    """The page What if of a small scenario, at rest."""
    look(driver)
    driver.get(f"{server}/?s={to_link(SMALL)}")
    settle(driver)
    console(driver)
    return driver


def test_the_address_of_a_page_opens_it_on_a_fresh_server(server, driver):
    look(driver)
    driver.get(f"{server}/catalog")
    assert "Click a head to sort" in settle(driver)
    assert console(driver) == []


def test_a_slider_moves_figures_and_chart_by_keyboard(opened):
    tpot, chart = card(opened, "TPOT mean"), drawing(opened)
    move(opened, "load", 6)
    assert address(opened).workload.rate_scale == 6
    assert number(card(opened, "TPOT mean")) > number(tpot)
    assert drawing(opened) != chart
    assert console(opened) == []


def test_controls_are_reached_with_the_tab_key(opened):
    script = "const e = document.activeElement; return e.ariaLabel || e.innerText"
    reached: set[str] = set()
    for _ in range(60):
        ActionChains(opened).send_keys(Keys.TAB).perform()
        reached.update(str(opened.execute_script(script) or "").splitlines())
    assert {"Compare", "Pin", "Link", "Scenario", "Upload"} <= reached
    assert {"load [times the workload's own]", "replicas (independent engines)"} <= reached


def test_the_download_is_the_scenario_and_gives_the_figures_of_the_page(opened):
    target, end = opened.downloads / "scenario.toml", time.monotonic() + 20
    press(opened, "Scenario")
    while not target.exists():
        assert time.monotonic() < end, "no download within 20 s"
        time.sleep(0.2)
    scenario = load_scenario(target)
    assert scenario == address(opened)
    found = summary(simulate(scenario))
    for label, name in (("TPOT mean", "tpot_mean_s"), ("power", "power_mean_w")):
        assert number(card(opened, label)) == pytest.approx(found[name], rel=0.05)


def test_an_upload_replaces_the_scenario_and_a_bad_one_harms_nothing(opened, tmp_path):
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text(scenario_toml(SMALL.changed({"name": "uploaded", "hardware.tp": 2})))
    bad.write_text("[hardware]\ntpp = 2\n")
    press(opened, "Upload")
    until(opened, lambda: opened.find_elements(By.CSS_SELECTOR, FILE), "the place for a file")
    opened.find_element(By.CSS_SELECTOR, FILE).send_keys(str(bad))
    page = opened.find_element(By.TAG_NAME, "body")
    until(opened, lambda: "tpp is not a known key" in page.text, "the fault is told")
    assert address(opened) == SMALL
    opened.find_element(By.CSS_SELECTOR, FILE).send_keys(str(good))
    until(opened, lambda: address(opened).name == "uploaded", "upload taken over")
    assert address(opened).hardware.tp == 2
    assert console(opened) == []


def test_a_link_opens_the_same_scenario_elsewhere(opened):
    move(opened, "load")
    link, tpot = opened.current_url, card(opened, "TPOT mean")
    opened.switch_to.new_window("tab")
    look(opened)
    opened.get(link)
    settle(opened)
    assert opened.current_url == link
    assert card(opened, "TPOT mean") == tpot
    opened.close()
    opened.switch_to.window(opened.window_handles[0])


def test_two_tabs_work_on_scenarios_of_their_own(opened, server):
    first = opened.current_window_handle
    opened.switch_to.new_window("tab")
    look(opened)
    opened.get(f"{server}/?s={to_link(SMALL.changed({'name': 'other'}))}")
    settle(opened)
    move(opened, "replicas")
    assert (address(opened).name, address(opened).hardware.replicas) == ("other", 2)
    opened.close()
    opened.switch_to.window(first)
    move(opened, "load")
    assert (address(opened).name, address(opened).hardware.replicas) == ("small", 1)


def test_a_pin_stands_beside_the_changed_scenario(opened):
    press(opened, "Pin")
    move(opened, "replicas")
    opened.find_element(By.PARTIAL_LINK_TEXT, "Compare").click()
    page = opened.find_element(By.TAG_NAME, "body")
    text = until(opened, lambda: "All were asked the same" in page.text, "the comparison")
    assert "small (on this page)" in text
    assert len(opened.find_elements(By.CSS_SELECTOR, '[data-testid="stVegaLiteChart"]')) == 6
    for width in WIDTHS:
        shoot(opened, "compare-two", width, "light")
    assert console(opened) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_page_fits_both_widths_in_both_modes(server, driver, page):
    look(driver)
    driver.get(f"{server}/{'' if page == 'what-if' else page}?s={to_link(SMALL)}")
    settle(driver)
    if page in PRESSED:
        before = driver.execute_script(TEXT)
        press(driver, PRESSED[page])
        until(driver, lambda: driver.execute_script(TEXT) != before, f"{page} begins")
    for width in WIDTHS:
        for mode in ("light", "dark"):
            shoot(driver, page, width, mode)
        wide = driver.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width, "nothing is cut off at the side"
    assert driver.find_elements(By.CSS_SELECTOR, '[data-testid="stException"]') == []
    assert console(driver) == []
