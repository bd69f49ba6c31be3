"""Chaos: traffic, faults, a recorded history, and invariants that are checked afterwards.

`python -m tests.chaos` is a random run; `test_pinned.py` has each scenario that must never break again.
"""

import sys
from pathlib import Path

# pytest puts `tests/` on the path for `from support...`; a run of its own does it here.
if (TESTS := str(Path(__file__).parents[1])) not in sys.path:
    sys.path.insert(0, TESTS)
