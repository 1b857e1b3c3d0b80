"""Running a plan over a table's encoded tasks, durably in a folder, and on after a crash."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cloister.board.billboard import Billboard
from cloister.board.storage import private_folder
from cloister.document import foreign_types
from cloister.engines.run import run
from cloister.errors import InputError
from cloister.ledger import Ledger
from cloister.plan import Plan
from cloister.tables.codebook import Codebook
from cloister.tables.folder import (
    check_free,
    put_in_place,
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
    tasks: Callable[[], Tasks],
    codebook: Codebook,
    settings: EstimatorSettings,
    *,
    ledger: Ledger | None = None,
    random_state: int | None = None,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
    resumed: Callable[[Billboard], None] | None = None,
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
        Returns the encoded tasks; not called if an earlier call was killed after the run was complete.
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
    """
    tidy(folder)
    check_free(folder, force)
    draft = unfinished_folder(folder)
    if (draft / "election").exists():
        raise InputError(
            f"{draft} holds an unfinished vote among several plans. Do what began it again, or remove that "
            "folder to give it up: what it has spent stays spent."
        )
    complete = _complete(draft, plan)
    if complete is not None:
        if resumed is not None:
            resumed(complete)
        put_in_place(draft, folder, force)
        return read_run(folder, foreign_types(plan))
    data = tasks()
    private_folder(draft)
    try:
        finished = run(
            plan,
            data,
            ledger=ledger,
            random_state=random_state,
            progress=None if progress is None else lambda step: progress(step.done, step.total),
            journal=draft,
            save=lambda done: write_run(draft, TableRun.of(done, codebook, settings)),
            resumed=resumed,
        )
    except BaseException:
        with suppress(OSError):
            draft.rmdir()  # if nothing was begun
        raise
    put_in_place(draft, folder, force)
    return TableRun.of(finished, codebook, settings)


def _complete(draft: Path, plan: Plan) -> Billboard | None:
    """Return the board of a run of this plan that is complete there but not in place."""
    if draft.is_symlink() or draft.exists():
        private_folder(draft)
    if (draft / "secret").exists() or not (draft / "models").is_dir():
        return None
    board = Billboard.load(draft / "board")
    if board.plan != plan.fingerprint:
        raise InputError(
            f"{draft} holds a run that is complete, and not this one. Do what began it again, or remove that "
            "folder."
        )
    return board
