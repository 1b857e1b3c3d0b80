"""Noise, sampling, accounting and the guarantee that follows."""
