"""Algorithms: one family a file, each reading like its paper."""
