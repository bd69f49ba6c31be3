"""Fixtures of the tests of the pages."""

from support.desk import desk

__all__ = ["desk"]
