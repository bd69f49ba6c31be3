"""What the tests of the workers share."""

import sys
from pathlib import Path

# `evil` is loaded by name, here and in renderer children, which inherit this path.
sys.path.insert(0, str(Path(__file__).parent))
