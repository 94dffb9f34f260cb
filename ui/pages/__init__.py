"""One function per page."""
