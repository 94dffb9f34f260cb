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

from sim.scenario import load_scenario
from sim.simulation import simulate
from ui.share import from_link

pytestmark = pytest.mark.browser
webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium (extra dev)")
By = pytest.importorskip("selenium.webdriver.common.by").By
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys

ROOT = Path(__file__).resolve().parents[2]
SHOTS = ROOT / "out" / "browser"
PATIENCE_S = 300  # the first run on a machine compiles the engine
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
PAGES = ("", "compare", "inside", "roofline", "plan", "catalog", "validation")


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
        while not is_up(url) and time.monotonic() < end:
            time.sleep(0.3)
        yield url
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


def settle(driver, busy: bool = False) -> str:
    """Wait until the page stands still, with no work in progress; return its text."""
    script = (
        "const app = document.querySelector('[data-test-script-state]');"
        "return [app ? app.dataset.testScriptState : '', document.body.innerText]"
    )
    before, same, end = "", 0, time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        state, text = driver.execute_script(script)
        works = driver.find_elements(By.CSS_SELECTOR, '[data-testid="stProgress"]')
        still = text == before and state == "notRunning" and (busy or not works)
        same = same + 1 if still and len(text) > 200 else 0
        if same == 3:
            return str(text)
        before = text
        time.sleep(0.5)
    raise TimeoutError("the page does not come to rest")


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
    return driver.find_element(By.CSS_SELECTOR, f'[role="slider"][aria-label^="{label}"]')


def drawing(driver) -> str:
    """Return the picture of the first chart."""
    chart = driver.find_element(By.CSS_SELECTOR, '[data-testid="stVegaLiteChart"]')
    return str(chart.screenshot_as_base64)


def press(driver, words: str) -> None:
    path = f"//button[contains(normalize-space(.), '{words}')]"
    driver.find_element(By.XPATH, path).click()


@pytest.fixture
def opened(server, driver):
    """The page What if, at rest."""
    look(driver)
    driver.get(server)
    settle(driver)
    return driver


def test_a_slider_moves_figures_and_chart_by_keyboard(opened):
    tpot, chart = card(opened, "TPOT mean"), drawing(opened)
    handle = slider(opened, "load")
    for _ in range(6):
        handle.send_keys(Keys.ARROW_RIGHT)
    settle(opened)
    assert card(opened, "TPOT mean") != tpot
    assert drawing(opened) != chart
    assert console(opened) == []


def test_the_download_is_the_scenario_of_the_address(opened):
    press(opened, "Scenario")
    target, end = opened.downloads / "scenario.toml", time.monotonic() + 20
    while not target.exists() and time.monotonic() < end:
        time.sleep(0.2)
    scenario = load_scenario(target)
    assert scenario == from_link(opened.current_url.split("s=")[1].split("&")[0])
    assert len(simulate(scenario).requests) > 100


def test_an_upload_replaces_the_scenario_and_a_bad_one_harms_nothing(opened, tmp_path):
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text('name = "uploaded"\n[hardware]\ntp = 2\n')
    bad.write_text("[hardware]\ntpp = 2\n")
    press(opened, "Upload")
    place = opened.find_element(By.CSS_SELECTOR, 'input[type="file"]')
    place.send_keys(str(bad))
    assert "tpp is not a known key" in settle(opened)
    opened.find_element(By.CSS_SELECTOR, 'input[type="file"]').send_keys(str(good))
    settle(opened)
    assert from_link(opened.current_url.split("s=")[1].split("&")[0]).hardware.tp == 2
    assert console(opened) == []


def test_a_link_opens_the_same_scenario_elsewhere(opened):
    slider(opened, "load").send_keys(Keys.ARROW_RIGHT)
    settle(opened)
    address, tpot = opened.current_url, card(opened, "TPOT mean")
    opened.switch_to.new_window("tab")
    look(opened)
    opened.get(address)
    settle(opened)
    assert opened.current_url == address
    assert card(opened, "TPOT mean") == tpot
    opened.close()
    opened.switch_to.window(opened.window_handles[0])


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p or "what-if")
def test_every_page_fits_both_widths_in_both_modes(server, driver, page, width, mode):
    look(driver, width, mode=mode)
    driver.get(f"{server}/{page}")
    settle(driver)
    SHOTS.mkdir(parents=True, exist_ok=True)
    driver.save_screenshot(str(SHOTS / f"{page or 'what-if'}-{width}-{mode}.png"))
    wide = driver.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width, "nothing is cut off at the side"
    assert driver.find_elements(By.CSS_SELECTOR, '[data-testid="stException"]') == []
    assert console(driver) == []
