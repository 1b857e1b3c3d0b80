"""What a run must know to go on, and nobody else may: its key, and which plan and data it belongs to."""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from cloister.board.storage import write_file
from cloister.engines.shards import Shards
from cloister.engines.workers import AnyTasks
from cloister.errors import BillboardError, InputError, PlanError
from cloister.plan import Plan
from cloister.plan_forms import fingerprint_of_file
from cloister.privacy.randomness import KEY_BYTES, Randomness, SeededRandomness, SystemRandomness, source_of
from cloister.roster import Roster

__all__ = ["Secret", "check_same", "digest_of"]

#: Journals begun by another version are refused; after the slash, how often it changed how noise is drawn.
VERSION = "0.2.0/2"
_WARNING = "SECRET: who has this can take the noise off the board. Share it with nobody."
GIVE_UP = "or remove that folder to give the unfinished run up: what it has spent stays spent"


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
    def new(cls, tasks: AnyTasks, seed: int | None, charged: bool) -> Secret:
        """Draw a key, or take the one of a seed; tie it to the data."""
        source = source_of(seed)
        return cls(
            source.key.hex(), digest_of(tasks, source.key), secrets.token_hex(16), seed, charged, VERSION
        )

    @classmethod
    def read(cls, path: Path) -> Secret | None:
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
        if self.version == VERSION:
            return self
        raise BillboardError(
            f"The unfinished run in {folder} was begun by cloister {self.version}, and that version alone "
            f"can finish it (this is {VERSION}): give the same call again there, {GIVE_UP}."
        )

    def write(self, path: Path) -> None:
        """Write the secret for this user alone."""
        write_file(path, json.dumps({"warning": _WARNING} | asdict(self), indent=1).encode(), mode=0o600)

    @property
    def source(self) -> Randomness:
        if self.seed is not None:
            return SeededRandomness(self.seed)
        return SystemRandomness(bytes.fromhex(self.key))


def digest_of(tasks: AnyTasks, key: bytes) -> str:
    """Return a digest of all data, under a key: who does not have the key cannot try data out on it."""
    digest = hashlib.blake2b(key=key, digest_size=32, person=b"cloister data")
    if isinstance(tasks, Roster):  # rows are elsewhere: who holds them answers for them
        return hashlib.blake2b(tasks.fingerprint.encode(), key=key, digest_size=32).hexdigest()
    if isinstance(tasks, Shards):
        whole = f"{tasks.roster.fingerprint} {tasks.fingerprint}".encode()
        return hashlib.blake2b(whole, key=key, digest_size=32, person=b"cloister shards").hexdigest()
    labels = () if tasks.groups is None else (tasks.groups,)
    for array in (tasks.ids, tasks.X, tasks.y, tasks.weight, tasks.offsets, *labels):
        plain = np.ascontiguousarray(array)
        digest.update(f"{plain.dtype.str} {plain.shape};".encode())
        digest.update(repr(array.tolist()).encode() if plain.dtype.hasobject else plain.tobytes())
    return digest.hexdigest()


def check_same(folder: Path, secret: Secret, plan: Plan, tasks: AnyTasks, seed: int | None) -> None:
    """Refuse to go on with anything else than what was begun."""
    if fingerprint_of_file(folder / "plan.toml") != plan.fingerprint:
        raise PlanError(
            f"The unfinished run in {folder} is of another plan. Run it with the same settings, {GIVE_UP}."
        )
    if seed != secret.seed:
        begun = "without a seed" if secret.seed is None else f"with random_state={secret.seed}"
        raise InputError(f"The unfinished run in {folder} was begun {begun}. Go on so, {GIVE_UP}.")
    if digest_of(tasks, secret.source.key) != secret.data:
        raise InputError(
            f"The data, or how it is encoded, has changed since the run in {folder} was begun, and nothing "
            f"is paid for releases of other data. Bring it back as it was, {GIVE_UP}."
        )
