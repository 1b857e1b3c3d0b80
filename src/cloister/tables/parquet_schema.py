"""The columns of a folder of Parquet files: in which files each is, and its one type in all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloister.engines.sharded_tasks import ShardError
from cloister.errors import InputError

__all__ = ["FolderSchema"]


@dataclass(frozen=True)
class FolderSchema:
    """What is public of the columns of some files; no cell is looked at.

    Attributes
    ----------
    arrow : pyarrow.Schema
        Each column that has one type in all files, or types of which one holds the others, as a column that
        is whole numbers in one file and floats in another.
    absent : mapping of str to str
        Of columns that are not in all files: a file without it.
    clashes : mapping of str to str
        Of columns with types that do not go together: what was found where.
    """

    arrow: Any
    absent: Mapping[str, str]
    clashes: Mapping[str, str]

    @classmethod
    def of(cls, pa: Any, files: Mapping[str, Mapping[str, Any]]) -> FolderSchema:
        """Merge the columns of files, each a type by its name."""
        kinds: dict[str, Any] = {}
        first: dict[str, str] = {}
        clashes: dict[str, str] = {}
        for file, columns in files.items():
            for name, kind in columns.items():
                before = kinds.setdefault(name, kind)
                common = _common(pa, before, kind)
                if common is None:
                    clashes.setdefault(name, f"{before} in {first[name]} and {kind} in {file}")
                else:
                    kinds[name] = common
                first.setdefault(name, file)
        absent = {
            name: file
            for name in kinds
            for file, columns in reversed([*files.items()])
            if name not in columns
        }
        return cls(pa.schema([item for item in kinds.items() if item[0] not in clashes]), absent, clashes)

    def check(self, where: str, columns: Sequence[str]) -> None:
        """Refuse a folder of which a file is without one of these columns, or holds it as something else."""
        known = [*self.arrow.names, *self.clashes]
        for name in columns:
            if name not in known:
                shown = ", ".join(known[:20]) + ", ..." * (len(known) > 20)
                raise InputError(f"{where} has no column {name!r}. It has: {shown}.")
            if name in self.absent:
                raise ShardError(
                    f"Column {name!r} must be in every file of {where}. {self.absent[name]} has none. Export "
                    "that file with it, or take the file away."
                )
            if name in self.clashes:
                raise ShardError(
                    f"Column {name!r} of {where} must have one type. It is {self.clashes[name]}. Export it "
                    "as one type in all files."
                )


def _common(pa: Any, one: Any, other: Any) -> Any:
    """Return a type that holds both, or None; a category in one file may be text in another."""
    if one.equals(other):
        return one
    if pa.types.is_dictionary(one) != pa.types.is_dictionary(other):
        one, other = (kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (one, other))
    try:
        schemas = [pa.schema([("column", kind)]) for kind in (one, other)]
        return pa.unify_schemas(schemas, promote_options="permissive").field("column").type
    except pa.ArrowException:
        return None
