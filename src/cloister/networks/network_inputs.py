"""What one row of a network's input is: one tensor, or several that `forward` takes by name.

Several are one tensor of bytes wherever rows are cut, moved and recorded, and are told apart again, without a
copy, where the network is called: blocks of tasks, recorded rounds and frozen bodies have one input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cloister.core.arrays import Array

#: What a row may hold if nobody looked: it must stop no other task.
ABSURD_FLOATS = (torch.nan, torch.inf, -torch.inf, 1e30)
ABSURD_CODES = (-(2**62), -1, 2**62)


@dataclass(frozen=True)
class RowKind:
    """Shape and type of one row, of inputs or of targets; `record` has the names of several inputs."""

    shape: torch.Size
    dtype: torch.dtype
    record: np.dtype[Any] | None = None

    @classmethod
    def of(cls, array: Array) -> RowKind:
        """Return the kind of rows (n, ...), as they will be in torch."""
        if array.dtype.names is None:
            return cls(torch.Size(array.shape[1:]), kind_of(array))
        record = aligned(array.dtype)
        return cls(torch.Size((*array.shape[1:], record.itemsize)), torch.uint8, record)

    def __str__(self) -> str:
        if self.record is None:
            return f"{self.dtype} of shape {tuple(self.shape)}"
        parts = (f"{name} ({kind} of shape {shape})" for name, kind, shape in self._fields())
        return ", ".join(parts)

    def synthetic(self, count: int) -> Tensor:
        """Return synthetic rows: one where whole numbers have a name, as masks do, and zero where not."""
        draw = torch.Generator().manual_seed(0)
        if self.record is None:
            rows = torch.zeros(count, *self.shape, dtype=self.dtype)
            return rows.normal_(generator=draw) if rows.is_floating_point() else rows
        records = np.ones((count, *self.shape[:-1]), dtype=self.record)
        for name, kind, shape in self._fields():
            if kind.kind == "f":
                records[name] = torch.zeros(count, *shape).normal_(generator=draw).numpy()
        return tensor_of(records)

    def drawn(self, count: int, draws: torch.Generator) -> Tensor:
        """Return rows that differ: normal numbers, or codes of which half are small."""
        if self.record is None:
            return _drawn((count, *self.shape), self.dtype, draws)
        records = np.zeros((count, *self.shape[:-1]), dtype=self.record)
        for name, kind, shape in self._fields():
            records[name] = _drawn((count, *shape), kind_of(np.empty(0, kind)), draws).numpy()
        return tensor_of(records)

    def moved(self, rows: Tensor, which: int) -> Tensor:
        """Return rows one of which is another: each of its numbers is one larger."""
        return self._changed(rows, which, lambda part: part + 1)

    def spoilt(self, rows: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield rows the first of which is absurd, in one of its inputs at a time, and say how."""
        if self.record is None:
            for value in ABSURD_FLOATS if self.dtype.is_floating_point else ABSURD_CODES:
                yield f"{value}", self._changed(rows, 0, lambda part: torch.full_like(part, value))  # noqa: B023
            return
        for name, kind, _ in self._fields():
            for value in ABSURD_FLOATS if kind.kind == "f" else ABSURD_CODES:
                records = rows.numpy().copy().view(self.record)[..., 0]
                records[name][0] = value
                yield f"{value} in {name}", tensor_of(records)

    def _changed(self, rows: Tensor, which: int, change: Any) -> Tensor:
        other = rows.clone()
        if self.record is None:
            other[which] = change(other[which])
            return other
        records = other.numpy().view(self.record)[..., 0]
        for name in self.record.names or ():
            records[name][which] = change(records[name][which])
        return other

    def _fields(self) -> Iterator[tuple[str, np.dtype[Any], tuple[int, ...]]]:
        assert self.record is not None
        for name in self.record.names or ():
            field = self.record[name]
            yield name, field.base, field.shape


class NamedInputs(nn.Module):
    """A network that takes records, as bytes, and hands each field on by its name."""

    def __init__(self, net: nn.Module, record: np.dtype[Any]) -> None:
        super().__init__()
        self.net, places, kinds = net, [], {"f": torch.float32, "i": torch.int64}
        for name in record.names or ():
            field, start = record.fields[name][:2]  # type: ignore[index]
            place = name, start, start + field.itemsize, kinds[field.base.kind], tuple(field.shape)
            places.append(place)
        self.places = tuple(places)

    def forward(self, rows: Tensor) -> Any:
        named = {}
        for name, start, stop, kind, shape in self.places:
            numbers = rows[:, start:stop].view(kind)
            named[name] = numbers.reshape(-1, *shape)
        return self.net(**named)


def _drawn(shape: tuple[int, ...], dtype: torch.dtype, draws: torch.Generator) -> Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype, generator=draws)
    codes = torch.randint(0, 1 << 62, shape, generator=draws)
    return torch.where(torch.rand(codes.shape, generator=draws) < 0.5, codes & 15, codes).to(dtype)


def aligned(record: np.dtype[Any]) -> np.dtype[Any]:
    """Return the same fields, each where torch can read its numbers in place."""
    fields = [(name, record[name].base, record[name].shape) for name in record.names or ()]
    return np.dtype(fields, align=True)


def tensor_of(array: Array, device: torch.device | str = "cpu") -> Tensor:
    """Return an array as torch holds it: records as bytes, in a last axis."""
    if array.dtype.names is None:
        owned = array if array.flags.writeable else array.copy()  # torch has no read-only tensors
        return torch.as_tensor(owned, dtype=kind_of(array), device=device)
    records = np.array(array, dtype=aligned(array.dtype), order="C")
    numbers = records.view(np.uint8).reshape(*array.shape, records.dtype.itemsize)
    return torch.from_numpy(numbers).to(device)


def kind_of(array: Array) -> torch.dtype:
    """Return what an array becomes in torch: whole numbers stay so, others are 32-bit floats."""
    return torch.int64 if array.dtype.kind in "biu" else torch.float32
