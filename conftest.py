"""What tests cannot collect without an optional package."""

from __future__ import annotations

import importlib.util
import os

collect_ignore = [] if importlib.util.find_spec("triton") else ["src/cloister/learners/network/kernels.py"]

# The last bits of a product do not depend on where in memory its numbers are: some tests compare them.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
