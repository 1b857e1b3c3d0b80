"""A node's folder: whose it is, what its owner has approved, its copy of the board, and what stays there.

=================== ====================================================================================
node.toml           the task's name and group, the operator's public key, where the rows come from
key                 32 random bytes: the task's own seed and coins follow from them; secret
ledger              what this task has spent over all runs; its owner's own
log                 what was refused, and why; private
lock                held while a question is answered
plans/FINGERPRINT/  a plan that the owner has approved, and the rows as they are for it; private
runs/NAME/          a run: its roster and board, and the task's state, answers and model; private
=================== ====================================================================================

Every record on the copy of a board was signed, extends the one before, and follows the plan.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from cloister.core.errors import BillboardError, InputError, SignatureError, StorageError
from cloister.core.roster import Name, task_name
from cloister.core.spelling import counted
from cloister.core.tasks import Tasks
from cloister.engines.dry_run import try_plan
from cloister.engines.workers import checked_rows
from cloister.ledger import Ledger
from cloister.nodes.identity import Identity
from cloister.nodes.messages import SignedRecord
from cloister.plan.plan import Plan
from cloister.privacy.events import UnitName
from cloister.privacy.randomness import KEY_BYTES, SystemRandomness
from cloister.store.billboard import MAGIC, Billboard, scan
from cloister.store.files import (
    BINARY,
    append,
    bytes_of,
    private_folder,
    read_at,
    remove_drafts,
    storage_errors,
    sync_folder,
    try_lock,
    write_at,
    write_private,
)
from cloister.store.records import END, HASH
from cloister.store.signatures import SIGNATURE, SignedHead, SignedRoster, public_key

_AGAIN = "then the curator asks again"


class KeptBoard:
    """The files ``board`` and ``signatures`` of a run at a node.

    Parameters
    ----------
    folder : Path
        The run's folder.
    roster : SignedRoster
        The run's signed roster.
    operator : bytes
        The operator's public key.
    """

    def __init__(self, folder: Path, roster: SignedRoster, operator: bytes) -> None:
        self.folder, self.roster, self.operator = folder, roster, operator
        self.path, self.signatures = folder / "board", folder / "signatures"
        self.board: Billboard | None = None
        self._size, self._seen = 0, self._version()
        if self._seen is not None:
            found = scan(bytes_of(self.path), self.path)
            if found.problem is not None and not found.torn and found.board is not None:
                raise found.problem  # without a first record nothing was answered yet: it is sent again
            self.board, self._size = found.board, found.size

    @property
    def current(self) -> bool:
        """Whether the file is as it was when it was last read or written here."""
        return self._seen == self._version()

    def _version(self) -> tuple[int, ...] | None:
        if not self.path.exists():
            return None
        found = self.path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def __len__(self) -> int:
        """How many records are here."""
        return 0 if self.board is None else len(self.board.records)

    def signed_head(self, length: int | None = None) -> SignedHead:
        """Return the head after so many records, by default all, as the operator has signed it."""
        count = len(self) if length is None else length
        if self.board is None or not 1 <= count <= len(self):
            raise BillboardError(
                f"This journal has {counted(len(self), 'record')}. Got {count}. Ask for one of them."
            )
        file = os.open(self.signatures, os.O_RDONLY | BINARY)
        try:
            signature = read_at(file, SIGNATURE * (count - 1), SIGNATURE)
        finally:
            os.close(file)
        return self._head(count - 1, self.board.records[count - 1].hash, signature)

    def extend(self, first: int, sent: Sequence[SignedRecord], plan: Plan) -> None:
        """Take the records that are new; refuse all if one is not signed, or does not extend the board.

        A record that is here already must be the same: one that differs, and is signed, is kept as evidence.
        """
        board, known = self.board, len(self)
        for number, each in enumerate(sent, first):
            head = self._head(number, each.record[-HASH:], each.signature)
            head.verify(self.operator)
            if board is not None and number < known:
                self._compare(head, board.records[number].hash)
                continue
            board = Billboard.from_bytes(each.record) if board is None else board.append_bytes(each.record)
        if board is None or len(board.records) == known:
            return
        plan.check(board, since=known)
        self._write(board, known, [each.signature for each in sent[known - first :]])

    def _head(self, number: int, found: bytes, signature: bytes) -> SignedHead:
        return SignedHead(self.roster.run, self.roster.fingerprint, number + 1, found, signature)

    def _compare(self, other: SignedHead, own: bytes) -> None:
        if other.head == own:
            return
        evidence = {"ours": self.signed_head(other.length).to_dict(), "other": other.to_dict()}
        write_private(self.folder / "forked.json", json.dumps(evidence, indent=1).encode())
        raise SignatureError(
            f"The operator has signed two boards of run {self.roster.run!r}: record {other.length - 1} is "
            "another one than before. forked.json proves it. Answer no more, and ask the other owners."
        )

    def _write(self, board: Billboard, known: int, signatures: Sequence[bytes]) -> None:
        """Append records; their signatures are on disk before they are."""
        with storage_errors(self.folder, _AGAIN):
            self._put(self.signatures, SIGNATURE * known, b"".join(signatures))
            records = b"".join(map(board.record_bytes, range(known, len(board.records))))
            data = (b"" if known else MAGIC) + records
            self._put(self.path, self._size if known else 0, data + (END if board.complete else b""))
        self.board, self._size = board, (self._size if known else 0) + len(data)
        self._seen = self._version()

    def _put(self, path: Path, at: int, data: bytes) -> None:
        """Write at a place in a file that its owner alone can read, cut off what follows, and sync it."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT | BINARY, 0o600)
        try:
            os.ftruncate(file, at)
            write_at(file, at, data)
            os.fsync(file)
        finally:
            os.close(file)
        if not at:
            sync_folder(path.parent)


_FORMAT = "cloister node 1"
_APPROVAL = "cloister approval 1"
#: How long one question waits for another one to be answered.
PATIENCE = 600.0
#: A longer log is put aside, in place of the one that was put aside before.
LONGEST_LOG, LONGEST_LINE = 1 << 24, 2000


@dataclass(frozen=True)
class NodeSettings:
    """What the owner of a node has written down about it.

    Attributes
    ----------
    task : str or int
        The task's name, as it is on the roster.
    operator : str
        The operator's public key, 64 hexadecimal digits.
    group : str, optional
        The task's public group, where tasks are in groups.
    data : str, optional
        Where rows come from: a file, a database's address, or ``module:function``.
    query, codebook : str, optional
        The query for a database; the codebook file by which a table becomes rows.
    seed : int, optional
        The seed of the task's local randomness, for tests and papers; by default it follows from the key.
    """

    task: Name
    operator: str
    group: str | None = None
    data: str | None = field(default=None, repr=False)  # a database's address may hold a password
    query: str | None = None
    codebook: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", task_name(self.task))
        words = (self.operator, self.group or "", self.data or "", self.query or "", self.codebook or "")
        if not all(isinstance(word, str) for word in words) or not isinstance(self.seed, int | None):
            raise InputError("What a node's settings say must be words, and the seed a whole number.")
        public_key(self.operator)


@dataclass(frozen=True)
class Approval:
    """A plan that the owner has agreed to, and the rows as they are for it.

    Attributes
    ----------
    folder : Path
        Where it is kept.
    codebook : str
        SHA-256 of the codebook; empty without one.
    trial : bool
        Whether boards are accepted whose noise comes from a seed.
    version : int
        When it was written: another one is of other rows.
    roster : str
        Fingerprint of the signed roster that was approved with it; empty if there was none.
    """

    folder: Path
    codebook: str
    trial: bool
    version: int
    roster: str = ""

    def plan(self, types: Iterable[object] = ()) -> Plan:
        return Plan.load(self.folder / "plan.toml", types)

    @cached_property
    def _rows(self) -> bytes:
        return (self.folder / "rows.npz").read_bytes()

    @cached_property
    def data(self) -> str:
        """A digest of the rows. Private."""
        return hashlib.sha256(self._rows).hexdigest()

    def rows(self, settings: NodeSettings) -> Tasks | None:
        """Return the task's rows; none if it sends zeros. Private."""
        if not self._rows:
            return None
        with np.load(io.BytesIO(self._rows), allow_pickle=False) as kept:
            X, y, weight = (kept[name] for name in ("X", "y", "weight"))
            turn = kept.get("turn")
        tasks = replace(Tasks.from_arrays(X, y, [settings.task] * len(y), weight), turn=turn)
        return tasks if settings.group is None else tasks.with_groups({settings.task: settings.group})


@dataclass(frozen=True)
class NodeFolder:
    """The folder of a node, for its owner alone."""

    folder: Path

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        settings: NodeSettings,
        *,
        epsilon: float,
        delta: float,
        unit: UnitName = "task",
    ) -> NodeFolder:
        """Make a node's folder, with a new key and its own ledger of this budget over all runs.

        The budget is the task's, or where the `unit` is a record or a person that of each of its own.
        """
        home = cls(private_folder(Path(folder)))
        if (home.folder / "node.toml").exists():
            raise InputError(f"{home.folder} is a node already, and is left as it is. Choose another folder.")
        remove_drafts(home.folder)
        if any((home.folder / name).exists() for name in ("plans", "runs")) or home.has_spent:
            raise InputError(
                f"{home.folder} holds what a node has spent or answered, and its node.toml is gone. Restore "
                "that file from a copy; a new node needs another folder."
            )
        (home.folder / "ledger").unlink(missing_ok=True)  # of a node that was never made: nothing is in it
        write_private(home.folder / "key", secrets.token_bytes(KEY_BYTES))
        Ledger.create(home.folder / "ledger", str(settings.task), epsilon=epsilon, delta=delta, unit=unit)
        os.chmod(home.folder / "ledger", 0o600)
        document = {"format": _FORMAT} | {k: v for k, v in asdict(settings).items() if v is not None}
        write_private(home.folder / "node.toml", tomli_w.dumps(document).encode())
        return home

    @cached_property
    def settings(self) -> NodeSettings:
        path = self.folder / "node.toml"
        if not path.exists():
            raise InputError(f"{self.folder} is no node: it has no node.toml. Type cloister node init.")
        document = _document(path, _FORMAT)
        try:
            return NodeSettings(**document)
        except TypeError:
            raise InputError(
                f"{path} must have the lines that cloister node init wrote. Restore it."
            ) from None

    @cached_property
    def source(self) -> SystemRandomness:
        """Where the task's own randomness comes from. Secret."""
        return SystemRandomness((self.folder / "key").read_bytes())

    @property
    def has_spent(self) -> bool:
        """Whether anything was ever charged here."""
        return (self.folder / "ledger").exists() and bool(self.ledger.history)

    @property
    def ledger(self) -> Ledger:
        found: Ledger = Ledger.open(self.folder / "ledger")
        return found

    def approve(
        self,
        plan: Plan,
        rows: Tasks | None,
        codebook: str = "",
        trial: bool = False,
        roster: SignedRoster | None = None,
    ) -> Approval:
        """Note that the owner agrees to take part in runs of a plan, with these rows.

        Rows are kept as they are now, so that a run is answered from the same rows from its first round to
        its last; a plan is approved anew, with other rows, when none of its runs is unfinished.

        Parameters
        ----------
        plan : Plan
            What the owner has read and agreed to.
        rows : Tasks, optional
            This task's rows, and no other's. None, for rows that cannot be used, sends zeros in every round:
            no other task notices, and the curator sees zeros.
        codebook : str
            SHA-256 of the codebook that made them; empty without one.
        trial : bool
            Accept boards whose noise comes from a seed: nothing is promised there.
        roster : SignedRoster, optional
            Who takes part, with their keys, as the operator has signed it: a node that has keys answers in no
            other circle.
        """
        if roster is not None:
            self.check_roster(roster, plan)
        data = b"" if rows is None else self._checked(plan, rows)
        self._refuse_other_rows(plan.fingerprint, hashlib.sha256(data).hexdigest())
        home = private_folder(private_folder(self.folder / "plans") / plan.fingerprint)
        with self.locked():
            remove_drafts(home)
            write_private(home / "plan.toml", plan.to_toml().encode())
            write_private(home / "rows.npz", data)
            circle = "" if roster is None else roster.fingerprint
            document = {"format": _APPROVAL, "codebook": codebook, "trial": trial, "roster": circle}
            write_private(home / "approval.toml", tomli_w.dumps(document).encode())
        return self.approval(plan.fingerprint)

    def check_roster(self, signed: SignedRoster, plan: Plan) -> None:
        """Refuse a roster that is not the operator's, not of this plan, or has not this node's keys."""
        signed.verify(public_key(self.settings.operator))
        if signed.plan != plan.fingerprint or len(signed.roster) != plan.n_tasks:
            raise InputError(
                f"The roster must be of this plan and its {plan.n_tasks} tasks. Got {len(signed.roster)}, "
                f"of plan {signed.plan[:16]}. Ask the operator for both together."
            )
        at, own = signed.roster.position(self.settings.task), Identity.load(self.folder).public
        if not signed.keys or signed.keys[at] != own:
            raise InputError(
                f"The roster must have this node's own keys for task {self.settings.task!r}. Somebody else's "
                "stand there: approve nothing, and compare fingerprints with the operator."
            )

    def _checked(self, plan: Plan, rows: Tasks) -> bytes:
        """Return rows as they are kept; refuse those of others, and those that the plan is not for."""
        if list(rows.ids) != [self.settings.task]:
            raise InputError(
                f"Rows must be of task {self.settings.task!r} alone. Got {counted(len(rows), 'task')}."
            )
        try_plan(plan, rows)
        checked_rows(plan, rows, self)
        buffer = io.BytesIO()
        whose = {} if rows.turn is None else {"turn": rows.turn}
        np.savez(buffer, X=rows.X, y=rows.y, weight=rows.weight, **whose)  # type: ignore[arg-type]
        return buffer.getvalue()

    def _refuse_other_rows(self, fingerprint: str, data: str) -> None:
        """Refuse rows that differ from those by which an unfinished run of the plan was answered so far."""
        for path in (self.folder / "runs").glob("*/roster.json"):
            roster, run = SignedRoster.from_bytes(path.read_bytes()), path.parent
            if roster.plan == fingerprint and not _ended(run) and (run / "data").read_text("ascii") != data:
                raise InputError(
                    f"Run {roster.run!r} of this plan was begun with other rows, and is unfinished. Bring "
                    "those rows back, or wait for its end."
                )

    def approval(self, fingerprint: str) -> Approval:
        """Return what the owner has approved; refuse a plan that is not among it."""
        home = self.folder / "plans" / fingerprint
        if not fingerprint.isalnum() or not (home / "approval.toml").exists():
            raise InputError("The owner of this node has not approved the plan. Type cloister node approve.")
        document = _document(home / "approval.toml", _APPROVAL)
        version = (home / "approval.toml").stat().st_mtime_ns
        circle = str(document.get("roster", ""))  # earlier versions approved plans alone
        return Approval(home, str(document["codebook"]), document["trial"] is True, version, circle)

    def log(self, sentence: str) -> None:
        """Add a line to the private log; a log that cannot be written stops nothing."""
        path = self.folder / "log"
        line = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {' '.join(sentence.split())[:LONGEST_LINE]}\n"
        try:
            if path.exists() and path.stat().st_size > LONGEST_LOG:
                os.replace(path, path.with_name("log.old"))
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | BINARY, 0o600)
            try:
                append(file, line.encode(errors="replace"))
            finally:
                os.close(file)
        except OSError:
            pass

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes of this node waiting meanwhile."""
        with storage_errors(self.folder / "lock", "then try again"):
            file = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | BINARY, 0o600)
        try:
            until = time.monotonic() + PATIENCE
            while not try_lock(file):
                if time.monotonic() > until:
                    raise StorageError(f"{self.folder} is in use by another process. Wait for it, or end it.")
                time.sleep(0.02)
            yield
        finally:
            os.close(file)


def _ended(run: Path) -> bool:
    """Say whether all releases of a run are here: then rows answer nothing any more."""
    path = run / "board"
    if not path.exists():
        return False
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(END)))
        return file.read() == END


def _document(path: Path, form: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise InputError(f"{path} cannot be read as TOML. Restore it.") from None
    if document.pop("format", None) != form:
        raise InputError(f"{path} must begin with format = {form!r}. Use the version that wrote it.")
    return document
