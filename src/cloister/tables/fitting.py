"""Running a plan over a table's encoded tasks, durably in a folder, and on after a crash.

Between the end of a run, when the secret that its noise comes from is deleted, and the moment when its
folder is in place, a private file ``complete`` says whose run it is: a digest of the data under a key of its
own, and the key of the charge. It goes last, so that until then nothing else can pass for what was begun.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cloister.document import foreign_types
from cloister.engines.curator import bill_of, charge
from cloister.engines.local import Local
from cloister.engines.run import Run, run, seed_of
from cloister.engines.sharded_tasks import Shards
from cloister.engines.workers import Engine
from cloister.errors import InputError
from cloister.ledger import Ledger
from cloister.plan import Plan
from cloister.store.billboard import Billboard
from cloister.store.files import private_folder
from cloister.store.journal import check_same
from cloister.store.secret import Secret
from cloister.tables.codebook import Codebook
from cloister.tables.folder import (
    check_free,
    put_in_place,
    read_public,
    read_run,
    tidy,
    unfinished_folder,
    write_run,
)
from cloister.tables.table_run import EstimatorSettings, TableRun
from cloister.tasks import Tasks

__all__ = ["fit_in_folder"]


def fit_in_folder(
    folder: Path,
    plan: Plan,
    tasks: Callable[[], Tasks | Shards],
    codebook: Codebook,
    settings: EstimatorSettings,
    *,
    ledger: Ledger | None = None,
    random_state: int | None = None,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
    resumed: Callable[[Billboard], None] | None = None,
    engine: Engine = Local(),  # noqa: B008
) -> TableRun:
    """Run a plan and leave it in a folder of its own; killed at any time, the same call goes on.

    Until it is complete the run works in a draft beside the folder, which takes the folder's place at once.

    Parameters
    ----------
    folder : Path
        Where the run will be: a new folder, or (with `force`) that of an older run.
    plan : Plan
        What to run.
    tasks : callable
        Returns the encoded tasks; or shards, whose models the engine writes.
    codebook : Codebook
        How they are encoded.
    settings : EstimatorSettings
        Which estimator asks for it, so that `cloister.load` gives that one back.
    ledger : Ledger, optional
        Charged once, however often the run goes on.
    random_state : int, optional
        Makes the run reproducible and INSECURE.
    force : bool
        Whether to replace an older run.
    progress : callable, optional
        Called with (rounds done, rounds in all).
    resumed : callable, optional
        Called with the board so far when an unfinished run goes on, or with a complete one that is only put
        in place.
    engine : Engine
        Where tasks are computed on. That of shards puts their models into ``models`` in `unfinished_folder`.
    """
    tidy(folder)
    check_free(folder, force)
    draft = unfinished_folder(folder)
    if (draft / "election").exists():
        raise InputError(
            f"{draft} holds an unfinished vote among several plans. Do what began it again, or remove that "
            "folder to give it up: what it has spent stays spent."
        )
    if draft.is_symlink() or draft.exists():
        private_folder(draft)
    data = tasks()
    if (draft / "models").is_dir() and not (draft / "secret").exists():
        board = _check_complete(draft, plan, data, codebook, ledger, random_state)
        if resumed is not None:
            resumed(board)
        put_in_place(draft, folder, force)
        return _in_place(folder, plan, data, ledger)

    def save(done: Run) -> None:
        write_run(draft, TableRun.of(done, codebook, settings), models=isinstance(data, Tasks))
        begun = Secret.read(draft / "secret")
        assert begun is not None
        replace(Secret.new(data, begun.seed, begun.charged), run=begun.run).write(draft / "complete")

    private_folder(draft)
    try:
        finished = run(
            plan,
            data,
            ledger=ledger,
            random_state=random_state,
            progress=None if progress is None else lambda step: progress(step.done, step.total),
            journal=draft,
            save=save,
            resumed=resumed,
            engine=engine,
        )
    except BaseException:
        with suppress(OSError):
            draft.rmdir()  # if nothing was begun
        raise
    put_in_place(draft, folder, force)
    if isinstance(data, Shards):
        return _in_place(folder, plan, data, ledger)
    return TableRun.of(finished, codebook, settings)


def _in_place(folder: Path, plan: Plan, tasks: Tasks | Shards, ledger: Ledger | None) -> TableRun:
    """Read a run that is in place; of one over shards, without its models."""
    read = read_run if isinstance(tasks, Tasks) else read_public
    found = read(folder, foreign_types(plan))
    if ledger is None:
        return found
    return replace(found, guarantee=replace(found.guarantee, all_runs=ledger.balance.all_runs))


def _check_complete(
    draft: Path,
    plan: Plan,
    tasks: Tasks | Shards,
    codebook: Codebook,
    ledger: Ledger | None,
    random_state: int | None,
) -> Billboard:
    """Return the board of a complete run that is not in place; refuse one of anything else than was given."""
    begun = Secret.read(draft / "complete")
    if begun is None:
        raise InputError(
            f"{draft} holds a run that is complete, and nothing there says of which data. Rename that folder "
            "to keep the run, or remove it."
        )
    check_same(draft, begun, plan, tasks, seed_of(random_state))
    if Codebook.load(draft / "codebook.toml").to_dict() != codebook.to_dict():
        raise InputError(
            f"The codebook has changed since the run in {draft} was begun. Bring it back as it was, or "
            "remove that folder to give the run up: what it has spent stays spent."
        )
    if begun.charged and ledger is None:
        raise InputError(
            f"The run in {draft}, which is complete, was begun with a ledger. Name it again, or remove that "
            "folder to give the run up: what it has spent stays spent."
        )
    board = Billboard.load(draft / "board")
    if ledger is not None:
        charge(ledger, bill_of(plan, board), begun.run)
    return board
