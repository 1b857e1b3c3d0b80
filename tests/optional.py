"""torch where it is installed, else None: tests of arrays run without it."""

from __future__ import annotations

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]


def array_and_tensor(array):
    """Return an array, and the same as a tensor where there is torch."""
    return (array,) if torch is None else (array, torch.from_numpy(array))
