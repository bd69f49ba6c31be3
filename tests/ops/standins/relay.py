"""Shadows `python -m relay`."""

import standin

standin.main("relay")
