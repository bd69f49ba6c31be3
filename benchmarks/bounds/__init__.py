"""Bounds: what has to hold, each measured on real processes with the settings of production.

`python -m benchmarks.bounds [--only NAME] [--repeat 3]` prints a table of medians beside the bounds.
"""

import sys
from pathlib import Path

# The tests' fixtures of servers and processes are this script's hands.
for folder in ("tests", "."):
    if (found := str(Path(__file__).parents[2] / folder)) not in sys.path:
        sys.path.insert(0, found)
