"""A run's journal: a folder where releases are on disk before anyone else has them, so that a run can go on.

All secret randomness of a run follows from one key. The journal keeps that key until the run is complete: a
run that was killed listens to what is posted, computes the same states, draws the same noise and posts what
it would have posted, so it never adds a second noise to a sum, and never spends twice. Exact noise is drawn
for the sum it is added to: should a round that somebody has seen be made again from another sum, as when an
old copy of a journal goes on elsewhere, its noise is independent of the first.

=========== ============================================================================================
plan.toml   the plan; public
board       the billboard, one record a release; public; locked by the process that writes it
secret      the version that began the run, the key, a digest of the data under that key, the key of the
            charge; private; deleted at the end
sums        what correlated noise remembers of old sums; private; deleted with the secret
states      of a long run: the tasks' states as they were a while ago; private; deleted with the secret
states-7    of a long run over shards: the same of one shard, written and read by who computes on it
roster      of a stream of tasks: who has joined (`cloister.store.arrivals`); public
waiting     of a stream: the sum of the round that is not posted yet; private; deleted with the secret
=========== ============================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cloister.core.document import fingerprint_of_file
from cloister.core.errors import BillboardError, InputError, PlanError, StorageError
from cloister.privacy.caveats import Caveat
from cloister.privacy.mechanisms import NoiseState
from cloister.privacy.randomness import Randomness, source_of
from cloister.store import files
from cloister.store.billboard import MAGIC, Billboard, Scan, scan
from cloister.store.checkpoints import CheckpointFile, SecretRows
from cloister.store.files import (
    BINARY,
    append,
    bytes_of,
    private_folder,
    remove_drafts,
    storage_errors,
    sync_folder,
    try_lock,
    write_all,
    write_file,
)
from cloister.store.records import END, synced_every
from cloister.store.secret import GIVE_UP, RunTasks, Secret, digest_of

_AGAIN = "then run the same again: what is posted is whole, and nothing is spent twice"


class RunPlan(Protocol):
    """What a journal needs of a plan."""

    @property
    def fingerprint(self) -> str:
        """What tells it from other plans, in whichever form its file is."""

    def create_board(
        self, source: Randomness | None = None, engine: tuple[Caveat, ...] = (), together: bool = False
    ) -> Billboard:
        """Open the plan's billboard."""

    def check(self, board: Billboard) -> None:
        """Refuse a board of another plan, or one that the plan does not make."""

    def to_toml(self) -> str:
        """Return it as the text of a plan file."""


def check_same(folder: Path, secret: Secret, plan: RunPlan, tasks: RunTasks, seed: int | None) -> None:
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


class Journal(Protocol):
    """Where a run's releases are posted: what is there already, and how the next one is kept."""

    @property
    def folder(self) -> Path | None:
        """Where files may be put, if anywhere."""

    @property
    def source(self) -> Randomness:
        """Where the run's randomness comes from."""

    @property
    def run(self) -> str | None:
        """The key under which a ledger records the run once, if it has one."""

    @property
    def posted(self) -> Billboard:
        """The board so far."""

    @property
    def fresh(self) -> bool:
        """Whether the run was begun by this call."""

    @property
    def ended(self) -> bool:
        """Whether the board was closed before."""

    @property
    def kept(self) -> int:
        """After how many rounds the sums that noise remembers were kept last."""

    @property
    def every(self) -> int:
        """After how many rounds each time the board is on disk for good."""

    @property
    def checkpoint(self) -> CheckpointFile | None:
        """Where tasks' states may be kept; nowhere if there is no folder, or if tasks are elsewhere."""

    def keep(self, board: Billboard, state: NoiseState) -> Billboard:
        """Return a board with one release more when it can be used: once it is kept, and the state before."""

    def restore(self, state: NoiseState) -> None:
        """Give back what the state remembered of sums after `kept` rounds."""

    def finish(self) -> None:
        """Close the board: nothing follows."""

    def forget(self) -> None:
        """Delete the secret: from now on the run can be read only."""

    def discard(self) -> None:
        """Remove what was just begun, because the run may not take place."""


@dataclass
class MemoryJournal:
    """A board that lives as long as its process."""

    posted: Billboard
    source: Randomness
    run: str | None = None
    folder: Path | None = None
    kept: int = 0
    every: int = 1
    checkpoint: CheckpointFile | None = None
    fresh: bool = True
    ended: bool = False

    def keep(self, board: Billboard, state: NoiseState) -> Billboard:
        self.posted = board
        return board

    def restore(self, state: NoiseState) -> None: ...

    def finish(self) -> None: ...

    forget = discard = finish


@dataclass
class FolderJournal:
    """An open journal, locked for this process."""

    folder: Path
    secret: Secret
    posted: Billboard
    file: int
    size: int
    fresh: bool
    ended: bool
    sums: SecretRows
    every: int
    checkpoint: CheckpointFile | None = None
    seen: bool = False
    process: int = field(default_factory=os.getpid)

    @property
    def kept(self) -> int:
        """The last round after which the board was synced."""
        return self.posted.rounds - self.posted.rounds % self.every

    def restore(self, state: NoiseState) -> None:
        """Read the rows back that were on disk before the release of that round was."""
        size, kept = self.posted.releases[0].value.nbytes, self.kept
        state.restore(lambda row, since: self.sums.read(row, since, kept, size))

    @property
    def source(self) -> Randomness:
        """The run's randomness, the same whenever it goes on."""
        return self.secret.source

    @property
    def run(self) -> str:
        """The key under which a ledger records this run once, however often it goes on."""
        return self.secret.run

    def keep(self, board: Billboard, state: NoiseState) -> Billboard:
        """Append the last record; return when it is on disk, or (in a long run) will be with those after it.

        A record that is lost with the power before it is synced is made again, to the bit, from the key;
        until then nobody outside this process has it: where somebody would, it is synced at once.
        """
        if os.getpid() != self.process:  # after a fork both would write the same records
            raise _other_writer(self.folder)
        number = len(board.records) - 1
        data = board.record_bytes(number)
        due = board.complete or number % self.every == 0
        if due and not board.complete:
            self.sums.write(state.changed(), number)
        with storage_errors(self.folder / "board", _AGAIN):
            append(self.file, data)
            if due or self.seen:
                os.fsync(self.file)
        self.size += len(data)
        if self.size > files.CACHE_BYTES:
            board.mark_stored(self.folder / "board", self.size)
        self.posted = board
        return board

    def finish(self) -> None:
        if not self.ended:
            with storage_errors(self.folder / "board", _AGAIN):
                write_all(self.file, END)
            self.ended = True

    def forget(self) -> None:
        """Delete states, sums and secret; return when they are gone from disk."""
        self.sums.close()
        with storage_errors(self.folder / "secret", _AGAIN):
            for name in ("states", "sums", "waiting", "ending"):
                (self.folder / name).unlink(missing_ok=True)
            _remove_states(self.folder)
            (self.folder / "secret").unlink()
            sync_folder(self.folder)

    def discard(self) -> None:
        """Remove a journal that was begun by this call; one that was there before is left."""
        if self.fresh:
            _remove(self.folder)


def journal_folder(journal: object) -> Path:
    if not isinstance(journal, str | os.PathLike):
        raise InputError(f"journal must be the path of a folder. Got {journal!r}. Write journal='run'.")
    return Path(journal)


@contextmanager
def open_journal(
    folder: str | os.PathLike[str] | None,
    plan: RunPlan,
    tasks: RunTasks,
    seed: int | None,
    charged: bool,
    doubts: tuple[Caveat, ...] = (),
    apart: bool = False,
    seen: bool = False,
) -> Iterator[Journal]:
    """Open a journal, a new one or the one that is there, to go on; without a folder, a board in memory.

    `charged` says whether a ledger is charged for the run: one that was begun so does not go on without.
    `doubts` are the engine's; a run that was begun without one of them does not go on with it. Where tasks
    are `apart`, in other processes, every release is synced before it is used; and so where releases are
    `seen` outside of this process as they are made.
    """
    if folder is None:
        source = source_of(seed)
        yield MemoryJournal(plan.create_board(source, doubts, not apart), source)
        return
    home = journal_folder(folder)
    plan.create_board()  # a plan that cannot be opened leaves nothing behind
    if (home / "plan.toml").exists() and not (home / "board").exists():
        raise InputError(f"{home} is not a journal: it has a plan.toml but no board. Choose another folder.")
    private_folder(home)
    with _locked(home / "board") as file:
        with storage_errors(home, _AGAIN):
            remove_drafts(home)
        found = scan(bytes_of(home / "board"), home / "board")
        secret = Secret.read(home / "secret")
        if secret is None:
            _require_new(home, found, file)
            secret, fresh = _begin(home, plan, Secret.new(tasks, seed, charged)), True
        else:
            check_same(home, secret, plan, tasks, seed)
            if secret.charged and not charged:
                raise InputError(
                    f"The unfinished run in {home} was begun with a ledger. Name it again, {GIVE_UP}."
                )
            fresh = False
        posted = _mend(home / "board", file, found, plan.create_board(secret.source, doubts, not apart))
        plan.check(posted)
        _check_doubts(home, doubts, posted)
        size = os.fstat(file).st_size
        sums, ended = SecretRows(home / "sums", secret.source.key), found.problem is None
        try:
            every = 1 if apart else synced_every(posted.capacity)
            kept = None if apart else CheckpointFile(home / "states", secret.source.key, secret.data)
            yield FolderJournal(home, secret, posted, file, size, fresh, ended, sums, every, kept, seen)
        finally:
            sums.close()


@contextmanager
def _locked(board: Path) -> Iterator[int]:
    with storage_errors(board, "then try again"):
        file = os.open(board, os.O_RDWR | os.O_CREAT | BINARY, 0o666)
    try:
        with storage_errors(board, "then try again"):
            mine = try_lock(file) and _is_at(file, board)
        if not mine:
            raise _other_writer(board.parent)
        yield file
    finally:
        os.close(file)


def _other_writer(folder: Path) -> StorageError:
    return StorageError(
        f"Another process is writing {folder}. Wait until it has ended, or use another folder."
    )


def _is_at(file: int, path: Path) -> bool:
    """Say whether an open file still has this name: who held it before may have moved or removed it."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _require_new(folder: Path, found: Scan, file: int) -> None:
    """Refuse to begin where a run has been; a file without a byte is left by one that had not begun."""
    if not os.fstat(file).st_size:
        return
    if found.problem is None:
        raise InputError(
            f"The run in {folder} is complete and its secret is deleted: its board can be read, not run "
            f"again. For models write replay(plan, Billboard.load({str(folder / 'board')!r}), tasks); the "
            "next time keep them with save=. Use another folder."
        )
    raise BillboardError(
        f"The secret of the run in {folder} is gone, so that it cannot go on. Its board stays readable "
        "(Billboard.recover). Use another folder for another run."
    )


def _begin(folder: Path, plan: RunPlan, secret: Secret) -> Secret:
    try:
        write_file(folder / "plan.toml", plan.to_toml().encode())
        secret.write(folder / "secret")
    except BaseException:
        _remove(folder)
        raise
    return secret


def _remove(folder: Path) -> None:
    for name in ("states", "sums", "waiting", "ending", "roster", "secret", "plan.toml", "board"):
        (folder / name).unlink(missing_ok=True)
    _remove_states(folder)
    if not any(folder.iterdir()):
        folder.rmdir()


def _remove_states(folder: Path) -> None:
    """Remove what shards kept, and what a lost one had begun to."""
    for path in folder.glob("states-*"):
        path.unlink(missing_ok=True)
    remove_drafts(folder)


def _check_doubts(folder: Path, doubts: tuple[Caveat, ...], posted: Billboard) -> None:
    """Refuse to go on with a doubt that neither the board nor the ledger's charge of the run knows of."""
    known = {doubt.grade for doubt in posted.doubts}
    new = [doubt for doubt in doubts if doubt.grade not in known]
    if new:
        raise InputError(
            f"The unfinished run in {folder} was begun on another engine, or by cloister 0.1, which can "
            f"finish it: its board does not say that {new[0].reason}. Go on as it was begun, {GIVE_UP}."
        )


def _mend(path: Path, file: int, found: Scan, opening: Billboard) -> Billboard:
    """Cut off a record that was not written to its end: it will come out the same from the same sum."""
    if found.problem is not None and not found.torn:
        raise found.problem
    with storage_errors(path, _AGAIN):
        if found.problem is not None:
            os.ftruncate(file, found.size if found.board is not None else 0)
        os.lseek(file, 0, os.SEEK_END)
        if found.board is None:
            write_all(file, MAGIC + opening.record_bytes(0))
            sync_folder(path.parent)
            return opening
        os.fsync(file)  # what is used from here on is on disk
    return found.board
