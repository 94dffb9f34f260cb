"""Pages run without a browser, and the work behind them waited for."""

import time
from collections.abc import Callable

import pytest
from streamlit.testing.v1 import AppTest

PATIENCE_S = 240  # the first run on a machine compiles the engine


@pytest.fixture
def open_page() -> Callable[..., AppTest]:
    """A function that opens one page, perhaps with state and an address."""

    def opened(name: str, link: str = "", **state: object) -> AppTest:
        app = AppTest.from_string(
            f"from ui.views.{name} import page\npage()", default_timeout=PATIENCE_S
        )
        for key, value in state.items():
            app.session_state[key] = value
        if link:
            app.query_params["s"] = link
        return app.run()

    return opened


def settle(app: AppTest, slot: str = "simulation") -> AppTest:
    """Run a page again until the jobs of a slot have ended."""
    key, end = f"jobs of {slot}", time.monotonic() + PATIENCE_S
    while True:
        jobs = app.session_state[key] if key in app.session_state else {}  # noqa: SIM401
        if jobs and not any(job.running for job in jobs.values()):
            return app.run()
        if time.monotonic() > end:
            told = [f"{job.text} ({job.share:.0%}) {job.error}" for job in jobs.values()]
            faults = [e.value for e in [*app.error, *app.exception]]
            raise TimeoutError(f"{slot} not done within {PATIENCE_S} s: {told} {faults}")
        time.sleep(0.2)
        app.run()


def figures(app: AppTest) -> dict[str, str]:
    """Return what the cards say, by label."""
    return {card.label: card.value for card in app.metric}


def number(text: str) -> float:
    """Return a figure of a card in SI units."""
    value, unit = text.split(" ", 1)
    scale = {"ms": 1e-3, "µs": 1e-6, "kW": 1e3, "%": 1e-2}.get(unit, 1.0)
    return float(value.replace(",", "")) * scale
