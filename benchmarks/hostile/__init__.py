"""Hostile: every hostile request, its answer, and what it cost the portal's memory and the other teams.

The rows are those of tests/portal/test_hostile_bodies.py.
"""

import sys
from pathlib import Path

# The tests' rows are this script's rows.
for folder in ("tests", "."):
    if (found := str(Path(__file__).parents[2] / folder)) not in sys.path:
        sys.path.insert(0, found)
