"""Shadows `python -m portal`."""

import standin

standin.main("portal")
