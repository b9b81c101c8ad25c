"""Diagnoses and tables of loaders for people: an HTML page and a terminal."""

__all__ = ["page", "terminal", "wording"]
