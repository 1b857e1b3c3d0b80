"""Candidates of exact noise on a graphics card: the same whole numbers as those of the processor.

One thread computes a block of ChaCha20, which is the coins of four candidates, and decides about these as
`cloister.privacy.chacha_proposals.coarse` does: by whole numbers alone, hence bit for bit alike.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from cloister.core.arrays import Integers
from cloister.networks.placement import fetched
from cloister.privacy import chacha_proposals as rule
from cloister.privacy.chacha_proposals import BLOCK_WORDS, Call, Candidates, mask_of, tables

#: Blocks of the cipher that one program computes.
TOGETHER = 128
#: Candidates whose coins are one block.
EACH = BLOCK_WORDS // 2
#: Marks a candidate in doubt on its way to the processor, in one copy with all others, which are larger.
IN_DOUBT = -(2**63)
NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class CardSampler:
    """Computes candidates on one card.

    Privacy
    -------
    What the card is given are the key of one release's noise and the deviation; they are as safe there as the
    sum itself, which it made. A candidate whose coins leave a doubt is settled on the processor.
    """

    device: torch.device

    def __call__(self, call: Call, count: int, deviation: int) -> Candidates:
        shift = max(0, deviation.bit_length() - 31)
        numbers = [
            deviation,
            mask_of(deviation),
            shift,
            deviation >> shift,
            call.number,
            rule.DOUBT,
            IN_DOUBT,
            count,
        ]
        given = np.concatenate([np.frombuffer(call.key, dtype="<i8"), numbers])
        most = min(count, count * deviation // (mask_of(deviation) + 1) + 8 * math.isqrt(count) + 16)
        program = _program(self.device, max(EACH * TOGETHER, triton.next_power_of_2(count)))
        with program.alone:
            program(given)
            found = fetched(program.chosen[: 1 + most])  # how many there are need not be waited for
            kept = int(found[0])
            stayed = found[1 : 1 + kept] if kept <= most else program.chosen[1 : 1 + kept].cpu().numpy()
            if not kept or stayed.min() > IN_DOUBT:
                return Candidates(stayed, NONE, NONE)
            doubtful = program.values[:count] == IN_DOUBT
            return Candidates(stayed, np.flatnonzero(stayed == IN_DOUBT), fetched(doubtful.nonzero()[:, 0]))


class _Program:
    """All steps from a key to the candidates that stay, of so many at most; on a card one graph.

    What they need lies at fixed places, so one call may use them at a time.
    """

    def __init__(self, device: torch.device, size: int) -> None:
        self.alone = threading.Lock()
        self.tables = _tables(device)  # a graph knows where they lie, and does not keep them
        self.given = torch.ones(12, dtype=torch.int64, device=device)
        self.told = torch.zeros(12, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.values = torch.empty(size, dtype=torch.int64, device=device)
        self.chosen = torch.empty(1 + size, dtype=torch.int64, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            with torch.cuda.device(device):
                self._compute()  # compiled before it is recorded
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                    self._compute()

    def __call__(self, given: Integers) -> None:
        """Leave how many candidates stay, and these, in `chosen`."""
        self.told.numpy()[:] = given
        self.given.copy_(self.told, non_blocking=True)
        if self.graph is None:
            self.chosen = torch.empty_like(self.chosen)  # what was handed out stays as it is
            self._compute()
        else:
            self.graph.replay()

    def _compute(self) -> None:
        size = len(self.values)
        stay = torch.empty(size, dtype=torch.int8, device=self.values.device)
        _decide_all[(size // (EACH * TOGETHER),)](
            self.given, *self.tables, self.values, stay, LEVELS=rule.LEVELS, TOGETHER=TOGETHER
        )
        places = torch.nonzero_static(stay, size=size)[:, 0]
        torch.cat([stay.sum(dtype=torch.int64)[None], self.values[places]], out=self.chosen)


@lru_cache(maxsize=8)
def _program(device: torch.device, size: int) -> _Program:
    return _Program(device, size)


@lru_cache(maxsize=16)
def _tables(device: torch.device) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(table.astype(np.int64)).to(device) for table in tables())


@triton.jit
def _rotated(word, by: tl.constexpr):
    return (word << by) | (word >> (32 - by))


@triton.jit
def _quarter(a, b, c, d):
    """Compute ChaCha's quarter round."""
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _half(given, place):
    """Return a half of a 64-bit word, spread over the block's threads by adding it to zeros."""
    return (tl.load(given + place // 2) >> (32 * (place % 2))).to(tl.uint32)


@triton.jit
def _decide(v, u, low_half, high_half, at, given, floors, high, low, values, stay, LEVELS: tl.constexpr):
    """Decide about one candidate a thread; u and v are the halves of its first word."""
    deviation = tl.load(given + 4).to(tl.uint64)
    mask = tl.load(given + 5).to(tl.uint64)
    shift = tl.load(given + 6).to(tl.uint64)
    divisor = tl.load(given + 7).to(tl.uint64)
    margin = tl.load(given + 9).to(tl.uint64)
    second = low_half.to(tl.uint64) | (high_half.to(tl.uint64) << 32)
    negative = (second & 1) != 0
    j = (second >> 1) & mask
    inside = j < deviation
    u, v = u.to(tl.uint64), v.to(tl.uint64)
    level = tl.zeros_like(u)
    doubt = u != u
    for k in tl.static_range(LEVELS):
        floor = tl.load(floors + k).to(tl.uint64)
        level += (u >= floor).to(tl.uint64)
        doubt |= u == floor
    level = tl.where(level > LEVELS - 1, level - 1, level)
    x = ((j >> shift) << 32) // divisor
    x = tl.where(x > 4294967295, tl.zeros_like(x) + 4294967295, x)
    exponent = x * level + ((x * x) >> 33)
    exponent = tl.where(inside, exponent, tl.zeros_like(x))
    weight = tl.load(high + (exponent >> 24).to(tl.int64)).to(tl.uint64)
    weight = (weight * tl.load(low + ((exponent >> 12) & 4095).to(tl.int64)).to(tl.uint64)) >> 31
    weight = weight - ((weight * (exponent & 4095)) >> 32)
    doubt |= (v <= weight + margin) & (weight <= v + margin)
    keep = (v < weight) & ((negative & (level == 0) & (j == 0)) == 0)
    size = (level * deviation + j).to(tl.int64)
    value = tl.where(inside & doubt, tl.load(given + 10), tl.where(negative, -size, size))
    asked = at < tl.load(given + 11)
    tl.store(values + at, value)
    tl.store(stay + at, (asked & inside & (doubt | keep)).to(tl.int8))


@triton.jit
def _decide_all(given, floors, high, low, values, stay, LEVELS: tl.constexpr, TOGETHER: tl.constexpr):
    """Compute a block of the cipher a thread, and decide about its four candidates."""
    block = tl.program_id(0).to(tl.int64) * TOGETHER + tl.arange(0, TOGETHER)
    o = tl.zeros([TOGETHER], tl.uint32)
    c0, c1, c2, c3 = o + 0x61707865, o + 0x3320646E, o + 0x79622D32, o + 0x6B206574
    k0, k1, k2, k3 = o + _half(given, 0), o + _half(given, 1), o + _half(given, 2), o + _half(given, 3)
    k4, k5, k6, k7 = o + _half(given, 4), o + _half(given, 5), o + _half(given, 6), o + _half(given, 7)
    b0, b1 = block.to(tl.uint32), (block >> 32).to(tl.uint32)
    n0, n1 = o + _half(given, 16), o + _half(given, 17)
    x0, x1, x2, x3, x4, x5, x6, x7 = c0, c1, c2, c3, k0, k1, k2, k3
    x8, x9, xa, xb, xc, xd, xe, xf = k4, k5, k6, k7, b0, b1, n0, n1
    for _ in range(10):
        x0, x4, x8, xc = _quarter(x0, x4, x8, xc)
        x1, x5, x9, xd = _quarter(x1, x5, x9, xd)
        x2, x6, xa, xe = _quarter(x2, x6, xa, xe)
        x3, x7, xb, xf = _quarter(x3, x7, xb, xf)
        x0, x5, xa, xf = _quarter(x0, x5, xa, xf)
        x1, x6, xb, xc = _quarter(x1, x6, xb, xc)
        x2, x7, x8, xd = _quarter(x2, x7, x8, xd)
        x3, x4, x9, xe = _quarter(x3, x4, x9, xe)
    at = 4 * block
    _decide(x0 + c0, x1 + c1, x2 + c2, x3 + c3, at, given, floors, high, low, values, stay, LEVELS)
    _decide(x4 + k0, x5 + k1, x6 + k2, x7 + k3, at + 1, given, floors, high, low, values, stay, LEVELS)
    _decide(x8 + k4, x9 + k5, xa + k6, xb + k7, at + 2, given, floors, high, low, values, stay, LEVELS)
    _decide(xc + b0, xd + b1, xe + n0, xf + n1, at + 3, given, floors, high, low, values, stay, LEVELS)
