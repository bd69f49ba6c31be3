"""The containers, really run: `python -m tests.compose`. What `test_files.py` checks needs no engine."""

import sys
from pathlib import Path

# pytest puts `tests/` on the path for `from support...`; a run of its own does it here.
if (TESTS := str(Path(__file__).parents[1])) not in sys.path:
    sys.path.insert(0, TESTS)
