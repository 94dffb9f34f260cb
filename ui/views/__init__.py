"""One function a page; each can be called alone.

The folder is not called `pages`: Streamlit would run the files of such a folder beside its entry
file as pages of their own until the router has run once, so the first address opened on a server
could show nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

__all__ = ["PAGES", "Page"]


@dataclass(frozen=True)
class Page:
    """A page of the explorer.

    Attributes
    ----------
    title, icon, path : str
        What the menu shows, and the word in the address.
    module : str
        Where its function `page` is; imported when the page is opened.
    first : bool
        Shown when no page is named.
    """

    title: str
    icon: str
    path: str
    module: str
    first: bool = False

    @property
    def draw(self) -> Callable[[], None]:
        """The function that draws it."""

        def draw() -> None:
            import_module(self.module).page()

        draw.__name__ = self.path.replace("-", "_")
        return draw


PAGES = (
    Page("What if", ":material/tune:", "what-if", "ui.views.what_if", first=True),
    Page("Compare", ":material/compare_arrows:", "compare", "ui.views.compare"),
    Page("Inside a run", ":material/timeline:", "inside", "ui.views.inside"),
    Page("Roofline", ":material/roofing:", "roofline", "ui.views.roofline"),
    Page("Plan", ":material/payments:", "plan", "ui.views.plan"),
    Page("Catalog", ":material/memory:", "catalog", "ui.views.catalog"),
    Page("Validation", ":material/rule:", "validation", "ui.views.validation"),
)
