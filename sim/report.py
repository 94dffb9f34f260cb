"""One self-contained HTML page of a result."""

from sim.simulation import Result

__all__ = ["report_html"]


def report_html(result: Result) -> str:
    """Return the page."""
    return f"<!doctype html><title>{result.scenario.name}</title>"
