"""The explorer: what-if pages about serving a model on hardware; the entry file is the frame.

Run it with ``roofcast explore``.
"""

import streamlit as st

__all__ = ["main"]


def main() -> None:
    """Choose the page and draw it."""
    from ui.theme import style
    from ui.views import PAGES

    st.set_page_config(page_title="roofcast", page_icon="⚡", layout="wide")
    style()
    pages = [
        st.Page(one.draw, title=one.title, icon=one.icon, url_path=one.path, default=one.first)
        for one in PAGES
    ]
    st.navigation(pages, position="top").run()


if __name__ == "__main__":
    main()
