"""The version, told in one place: every room may say it."""

from __future__ import annotations

__version__ = "0.2.0.dev0"
