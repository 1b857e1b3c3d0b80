"""Where secret randomness comes from: the operating system by default, a seed only for tests and papers.

The curator needs two secret streams, sampling coins and noise. A task's own randomness is a third thing
and lives with the task (`cloister.tasks.local_uniforms`). None is derived from another.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Randomness", "SeededRandomness", "SystemRandomness"]

Floats = NDArray[np.float64]


class Randomness(Protocol):
    """A source of secret uniforms, by named stream and round."""

    @property
    def description(self) -> str:
        """What the guarantee says about this source."""

    def uniforms(self, stream: str, round: int, count: int) -> Floats:
        """Return `count` uniforms in (0, 1)."""

    def local_seed(self) -> int:
        """Return a seed for the tasks' own local randomness."""


@dataclass(frozen=True)
class SystemRandomness:
    """The operating system's cryptographic generator; two draws never repeat."""

    @property
    def description(self) -> str:
        """What the guarantee says about this source."""
        return (
            "floating-point noise from the operating system's cryptographic generator "
            "(attacks on the lowest bits of floating-point numbers are not covered)"
        )

    def uniforms(self, stream: str, round: int, count: int) -> Floats:
        """Return `count` fresh uniforms in (0, 1)."""
        return _to_uniform(np.frombuffer(os.urandom(8 * count), dtype=np.uint64))

    def local_seed(self) -> int:
        """Return a fresh seed."""
        return secrets.randbits(63)


@dataclass(frozen=True)
class SeededRandomness:
    """Reproducible streams from a seed. INSECURE: who knows the seed can subtract the noise.

    Examples
    --------
    >>> source = SeededRandomness(7)
    >>> bool((source.uniforms("noise", 1, 3) == source.uniforms("noise", 1, 3)).all())
    True
    >>> bool((source.uniforms("noise", 1, 3) == source.uniforms("noise", 2, 3)).any())
    False
    """

    seed: int

    @property
    def description(self) -> str:
        """What the guarantee says about this source."""
        return "INSECURE: floating-point noise from a seed, for tests and papers"

    def uniforms(self, stream: str, round: int, count: int) -> Floats:
        """Return `count` uniforms in (0, 1), the same for the same (seed, stream, round)."""
        label = f"{self.seed}|{stream}|{round}".encode()
        key = np.frombuffer(hashlib.blake2b(label, digest_size=16).digest(), dtype=np.uint64)
        return _to_uniform(np.random.Philox(key=key).random_raw(count))

    def local_seed(self) -> int:
        """Return a seed that does not give away the others."""
        digest = hashlib.blake2b(f"{self.seed}|local".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1


def normals(uniforms: Floats) -> Floats:
    """Turn uniforms into standard normals by inversion."""
    from scipy.special import ndtri

    return np.asarray(ndtri(uniforms), dtype=np.float64)


def _to_uniform(bits: NDArray[np.uint64]) -> Floats:
    """Return the middles of 2^52 equal cells: exact in floating point, hence never 0 or 1."""
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
