"""Shadows `python -m dramatiq`."""

import standin

standin.main("worker")
