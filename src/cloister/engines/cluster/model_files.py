"""Models of many tasks in Parquet: one file a shard, one row a task, each row for its own task alone."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cloister.arrays import Array, States
from cloister.board.storage import private_folder, storage_errors
from cloister.errors import InputError, MissingExtraError

__all__ = ["ModelFile", "read_models"]

#: Tasks that are read together, where one is looked for; a file has them sorted.
ROW_GROUP = 1024
_SHAPES = b"cloister model shapes"


@dataclass(frozen=True)
class ModelFile:
    """Where the models of one shard go: ``shard-00007.parquet``, with a column ``task``.

    Scalars are columns of numbers; vectors and matrices are lists, flat, with their shapes in the schema.
    """

    folder: Path
    number: int

    @property
    def path(self) -> Path:
        return self.folder / f"shard-{self.number:05d}.parquet"

    def write(self, ids: Array, models: States) -> None:
        """Write all of it or nothing, for this user alone."""
        pa, pq = _pyarrow()
        shapes = {name: list(array.shape[1:]) for name, array in models.items()}
        columns = {"task": pa.array(ids.tolist())}
        columns |= {name: _column(pa, array) for name, array in models.items()}
        table = pa.table(columns).replace_schema_metadata({_SHAPES: json.dumps(shapes).encode()})
        draft = self.path.with_suffix(f".{os.getpid()}.draft")
        with storage_errors(self.folder, "then do the same again: every release is posted"):
            private_folder(self.folder)
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                pq.write_table(table.sort_by("task"), file, row_group_size=ROW_GROUP)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self.path)

    @staticmethod
    def tidy(folder: Path, count: int) -> None:
        """Remove what is none of so many shards' models: of lost actors, and of a call with more shards."""
        due = {ModelFile(folder, number).path for number in range(count)}
        for path in folder.glob("shard-*"):
            if path.suffix in (".draft", ".parquet") and path not in due:
                path.unlink(missing_ok=True)


def read_models(path: Path, tasks: Array | None = None) -> tuple[Array, States]:
    """Read the models of a file, of all its tasks or of some; return whose they are, and the arrays."""
    pa, pq = _pyarrow()
    try:
        filters = None if tasks is None else [("task", "in", tasks.tolist())]
        table = pq.read_table(path, filters=filters)
        shapes = json.loads(table.schema.metadata[_SHAPES])
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError):
        raise InputError(f"{path} is not a file of models, or was edited. Restore it.") from None
    ids = np.array(table["task"].to_pylist())
    arrays = {}
    for name, shape in shapes.items():
        column = table[name].combine_chunks()
        flat = column.flatten() if shape else column
        arrays[name] = flat.to_numpy(zero_copy_only=False).reshape(len(ids), *shape)
    return ids, arrays


def _column(pa: Any, array: Array) -> Any:
    flat = pa.array(np.ascontiguousarray(array).reshape(-1))
    size = int(np.prod(array.shape[1:]))
    return flat if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, size)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtraError("pyarrow", "table", "Writing models to Parquet") from error
    return pa, pq
