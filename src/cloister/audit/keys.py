"""Whether the keys of runs are secret: made by no clock and by no generator that others can run again.

All noise and all coins follow from a run's key. It is not enough that keys differ: one that is made of the
time, of a process number or of a generator with few states can be found by trying. So many keys are drawn
while clocks stand still and the generators of Python and NumPy begin anew each time. No key may come twice,
and the bits of all are fair coins. Keys of fewer than twenty bits are convicted, honest ones never by chance.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from unittest import mock

import numpy as np

from cloister.privacy.randomness import SystemRandomness

#: Keys that are drawn, and standard deviations beyond which no sum of fair coins lies: probability 1e-17.
_KEYS, _BEYOND = 4096, 9.0


def keys_are_secret() -> bool:
    """Say whether the keys that the operating system is asked for could not be made again.

    Examples
    --------
    >>> keys_are_secret()
    True
    """
    keys = list(_drawn(_KEYS))
    if len(set(keys)) < _KEYS or len(set(map(len, keys))) > 1:
        return False
    bits = np.unpackbits(np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(_KEYS, -1), axis=1)
    heads = bits.sum(axis=0, dtype=np.int64)
    return bool((np.abs(2 * heads - _KEYS) < _BEYOND * _KEYS**0.5).all())


def _drawn(count: int) -> Iterator[bytes]:
    """Yield keys that are all drawn in one public state: all that an adversary could bring about again."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with mock.patch.multiple(time, time=lambda: 0.0, time_ns=lambda: 0):
        try:
            for _ in range(count):
                random.seed(0)
                np.random.seed(0)  # noqa: NPY002
                yield SystemRandomness().key
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
