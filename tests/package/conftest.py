"""Fixtures of the package's tests."""

from support.desk import desk

__all__ = ["desk"]
