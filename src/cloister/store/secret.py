"""What a run must know to go on, and nobody else may: its key, and which data it belongs to."""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from cloister.core.errors import BillboardError
from cloister.core.roster import Roster
from cloister.core.tasks import Tasks
from cloister.privacy.randomness import KEY_BYTES, Randomness, SeededRandomness, SystemRandomness, source_of
from cloister.store.files import write_file

#: How coins, seeds and noise follow from a key: one more when any of them would come out otherwise, since a
#: run that goes on must draw what it would have drawn. No version of the library, though until format 2 it
#: was written as one: files on disk say so, and stay as they are.
FORMAT = 2
_WRITTEN_AS = f"0.2.0/{FORMAT}"
_WARNING = "SECRET: who has this can take the noise off the board. Share it with nobody."
GIVE_UP = "or remove that folder to give the unfinished run up: what it has spent stays spent"


class ShardedRows(Protocol):
    """Rows that are read elsewhere, with a hash that stands for them."""

    @property
    def roster(self) -> Roster:
        """The public list of the tasks."""

    @property
    def fingerprint(self) -> str:
        """A hash that stands for all rows and how they are encoded. Private."""


#: What a run is over: rows that are here, rows that are read elsewhere, or names alone.
RunTasks: TypeAlias = Tasks | ShardedRows | Roster


@dataclass(frozen=True)
class Secret:
    """What a run must know to go on, and nobody else may."""

    key: str = field(repr=False)
    data: str = field(repr=False)
    run: str
    seed: int | None
    charged: bool
    version: str

    @classmethod
    def new(cls, tasks: RunTasks, seed: int | None, charged: bool) -> Secret:
        """Draw a key, or take the one of a seed; tie it to the data."""
        source = source_of(seed)
        return cls(
            source.key.hex(), digest_of(tasks, source.key), secrets.token_hex(16), seed, charged, _WRITTEN_AS
        )

    @classmethod
    def read(cls, path: Path) -> Secret | None:
        """Read the secret of an unfinished run; None if there is none. One of another format is refused."""
        if not path.exists():
            return None
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            del document["warning"]
            secret = cls(**({"version": "0.1"} | document))
            kinds = [type(getattr(secret, name)) for name in ("key", "data", "run", "version", "charged")]
            seeded = secret.seed is None or type(secret.seed) is int
            if kinds == [str, str, str, str, bool] and seeded and len(bytes.fromhex(secret.key)) == KEY_BYTES:
                return secret._of_this_version(path.parent)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            pass
        raise BillboardError(f"{path} was edited: this run cannot go on. Restore it, {GIVE_UP}.")

    def _of_this_version(self, folder: Path) -> Secret:
        if self.version == _WRITTEN_AS:
            return self
        raise BillboardError(
            f"The unfinished run in {folder} was begun by cloister {self.version}, and that version alone "
            f"can finish it (this one continues {_WRITTEN_AS}): give the same call again there, {GIVE_UP}."
        )

    def write(self, path: Path) -> None:
        """Write the secret for this user alone."""
        write_file(path, json.dumps({"warning": _WARNING} | asdict(self), indent=1).encode(), mode=0o600)

    @property
    def source(self) -> Randomness:
        if self.seed is not None:
            return SeededRandomness(self.seed)
        return SystemRandomness(bytes.fromhex(self.key))


def digest_of(tasks: RunTasks, key: bytes) -> str:
    """Return a digest of all data, under a key: who does not have the key cannot try data out on it."""
    digest = hashlib.blake2b(key=key, digest_size=32, person=b"cloister data")
    if isinstance(tasks, Roster):  # rows are elsewhere: who holds them answers for them
        return hashlib.blake2b(tasks.fingerprint.encode(), key=key, digest_size=32).hexdigest()
    if not isinstance(tasks, Tasks):
        whole = f"{tasks.roster.fingerprint} {tasks.fingerprint}".encode()
        return hashlib.blake2b(whole, key=key, digest_size=32, person=b"cloister shards").hexdigest()
    labels = () if tasks.groups is None else (tasks.groups,)
    for array in (tasks.ids, tasks.X, tasks.y, tasks.weight, tasks.offsets, *labels):
        plain = np.ascontiguousarray(array)
        kind = plain.dtype.str if plain.dtype.names is None else plain.dtype.descr
        digest.update(f"{kind} {plain.shape};".encode())
        digest.update(repr(array.tolist()).encode() if plain.dtype.hasobject else plain.tobytes())
    return digest.hexdigest()
