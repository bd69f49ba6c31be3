"""Fairness: the bounds with real workers, beside stock Dramatiq on the same load, and the cost of a message.

`python -m benchmarks.fairness [--full] [--write]` prints the tables of docs/fairness.md.
"""

import sys
from pathlib import Path

# The tests' fixtures of servers and processes are this script's hands.
for folder in ("tests", "."):
    if (found := str(Path(__file__).parents[2] / folder)) not in sys.path:
        sys.path.insert(0, found)
