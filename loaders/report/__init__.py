"""A diagnosis as a text for a terminal, and as a page; `terminal.py` has the words of both."""

__all__ = ["page", "terminal"]
