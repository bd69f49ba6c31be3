"""Side by side: oncommit beside what its users would pick instead, and beside the limit, in one run.

`python -m benchmarks.bench [--only NAME] [--rounds N] [--quick]` prints medians and ratios and, when all
measures were asked for, writes benchmarks/RESULTS.md and its plots.
"""

import sys
from pathlib import Path

# The tests' fixtures of servers and processes are this package's hands.
for folder in ("tests", "."):
    if (found := str(Path(__file__).parents[2] / folder)) not in sys.path:
        sys.path.insert(0, found)
