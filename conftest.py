"""What tests cannot collect without an optional package."""

from __future__ import annotations

import importlib.util

collect_ignore = [] if importlib.util.find_spec("triton") else ["src/cloister/learners/kernels.py"]
