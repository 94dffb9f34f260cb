"""The HTML report: whole in itself, safe, and complete."""

import json
import re
import shutil
import subprocess

import pytest

from sim import simulate
from sim.metrics import metrics
from sim.report import report_html
from sim.units import readable

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def page(small_result):
    return report_html(small_result)


def own_text(page):
    """The page without the Vega libraries."""
    start = page.index("<script>")
    return page[:start] + page[page.index("</script>", start) :]


def test_nothing_is_fetched(page):
    text = own_text(page)
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text)
    assert "@import" not in text
    assert "url(" not in text
    assert "vegaEmbed" in page
    assert len(page) > 800_000  # the libraries are inside


def test_every_metric_stands_with_its_meaning(page):
    for m in metrics.values():
        assert f"<code>{m.name}</code>" in page
    assert "Little&#x27;s law" in page


def test_key_figures_and_fidelity(page, small_result):
    for words in ("TTFT p99", "output tokens", "per output token", "Llama-3.1-8B", "H200"):
        assert words in page
    assert "<b>measured</b>" in page
    assert "Error of decode attention on shapes held out" in page
    assert "TFLOP/s per accelerator" in page
    assert 'class="kind assumption"' in page


def test_another_accelerator_says_datasheet(small_scenario):
    result = simulate(small_scenario.changed({"hardware.accelerator": "l4"}))
    page = report_html(result)
    assert "<b>datasheet</b>" in page
    assert "wider error" in page


def test_specs_are_json(page):
    text = page[page.index("const specs = ") + len("const specs = ") :]
    specs = json.loads(text[: text.index(";\nfunction draw")].replace("<\\/", "</"))
    assert {"cdf_ttft", "tokens", "queue", "kv", "power", "energy", "gantt"} <= set(specs)
    for key in specs:
        assert f'id="{key}"' in page


def test_names_from_outside_are_escaped(small_scenario):
    name = "</script><script>alert('x')</script>"
    page = report_html(simulate(small_scenario.changed({"name": name})))
    assert name not in page
    assert "&lt;/script&gt;" in page


def test_a_run_without_a_finished_request_still_has_a_page(small_scenario):
    result = simulate(small_scenario.changed({"run.horizon_s": 0.4}))
    assert (result.requests["status"] == "unfinished").all()
    assert "<code>e2e_p99_s</code></td><td class=num>-</td>" in report_html(result)


def test_a_run_without_a_step_log_still_has_a_page(small_scenario):
    result = simulate(small_scenario.changed({"run.step_log": False}))
    page = report_html(result)
    assert 'id="cdf_ttft"' in page
    assert 'id="gantt"' in page
    assert 'id="power"' not in page


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (999.6e-3, "s", "1.00 s"),
        (0.0005, "s", "500 µs"),
        (123.0, "s", "123 s"),
        (0.0, "J", "0.00 J"),
        (-1500.0, "W", "-1.50 kW"),
        (1e-9, "1", "1e-07 %"),
        (0.99999, "1", "100 %"),
        (12345, "token", "12,345 token"),
    ],
)
def test_readable(value, unit, text):
    assert readable(value, unit) == text


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_draws_all_charts_and_does_not_scroll_sideways(page, tmp_path, width):
    root = "document.documentElement"
    probe = f"document.title = `wide ${{{root}.scrollWidth}} of ${{{root}.clientWidth}}`"
    script = f"<script>setTimeout(() => {probe}, 2500)</script>"
    (tmp_path / "page.html").write_text(page + script, encoding="utf-8")
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900",
        "--virtual-time-budget=6000", "--dump-dom", (tmp_path / "page.html").as_uri(),
    ]  # fmt: skip
    dom = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    drawn = dom.count("<svg") - page.count("<svg")  # the libraries hold one as text
    assert drawn == page.count('<div class="chart"')
    found = re.search(r"<title>wide (\d+) of (\d+)", dom)
    assert found
    assert found[1] == found[2]
