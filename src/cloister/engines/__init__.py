"""Engines: where an algorithm runs."""
