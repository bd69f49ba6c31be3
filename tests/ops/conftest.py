"""Fixtures of the operator's tests."""

from support.desk import desk

__all__ = ["desk"]
