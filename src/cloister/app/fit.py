"""Running a plan over a table's encoded tasks: in memory, or durably in a folder, and on after a crash.

Between the end of a run, when the secret that its noise comes from is deleted, and the moment when its
folder is in place, a private file ``complete`` says whose run it is: a digest of the data under a key of its
own, and the key of the charge. It goes last, so that until then nothing else can pass for what was begun.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloister.app.folder import (
    RECORD,
    check_free,
    put_in_place,
    read_public,
    read_run,
    tidy,
    unfinished_folder,
    write_run,
)
from cloister.app.result import EstimatorSettings, TableRun
from cloister.app.run_record import RunRecord
from cloister.app.source import Move
from cloister.app.task_model import TaskModel
from cloister.core.document import foreign_types
from cloister.core.errors import InputError
from cloister.core.findings import EarlierPrior
from cloister.core.tasks import Tasks
from cloister.engines.curator import bill_of, charge
from cloister.engines.local import Local
from cloister.engines.run import Run, run, seed_of
from cloister.engines.workers import Engine, Shards
from cloister.learners.learner import BayesianLearner
from cloister.learners.linear.classification import Classification
from cloister.learners.linear.counts import CountRegression
from cloister.learners.linear.ordered import OrderedClassification
from cloister.learners.linear.regression import Regression
from cloister.ledger import Ledger
from cloister.plan.plan import Plan
from cloister.store.billboard import Billboard
from cloister.store.files import private_folder
from cloister.store.journal import check_same
from cloister.store.secret import Secret
from cloister.tables.codebook import Codebook
from cloister.tables.column_types import Categorical
from cloister.tables.targets import Count, Ordered

#: Weights of classes, by class or in the codebook's order.
ClassWeight = Mapping[Any, float] | Sequence[float] | str | None


def fit_plan(
    plan: Plan,
    tasks: Callable[[], Tasks | Shards],
    units: Codebook,
    settings: EstimatorSettings,
    *,
    folder: Path | None = None,
    ledger: Ledger | None = None,
    random_state: int | None = None,
) -> TableRun:
    """Run a plan over encoded tasks, in memory, or in a folder of its own if one is named."""
    if folder is not None:
        return fit_in_folder(folder, plan, tasks, units, settings, ledger=ledger, random_state=random_state)
    found = TableRun.of(run(plan, tasks(), ledger=ledger, random_state=random_state), units, settings)
    return replace(found, record=found.record.ended(ledger, plan.fingerprint))


def own_learner(codebook: Codebook, class_weight: ClassWeight = None) -> BayesianLearner:
    """Return what a task does on its own; `class_weight` is by class, or in the codebook's order."""
    classes = codebook.target.levels if isinstance(codebook.target, Categorical) else ()
    weights = class_weights(classes, class_weight)
    if isinstance(codebook.target, Count):
        most, exposed = codebook.target.high, codebook.exposure is not None
        return CountRegression(codebook.width, most, exposed)
    if isinstance(codebook.target, Ordered):
        return OrderedClassification(codebook.width, len(codebook.target.levels), class_weight=weights)
    if codebook.classes is None:
        return Regression(codebook.width)
    alike = True if codebook.classes > 2 else None
    return Classification(codebook.width, codebook.classes, class_weight=weights, alike=alike)


def class_weights(classes: Sequence[Any], given: ClassWeight) -> tuple[float, ...] | None:
    """Return one weight a class, from a mapping or from numbers in the classes' order."""
    if given is None:
        return None
    if isinstance(given, str):
        raise InputError(
            "class_weight must be public: a mapping from classes to numbers, or numbers in the codebook's "
            f"order. Got {given!r}. Rates that are read from rows are private."
        )
    if not isinstance(given, Mapping):
        return tuple(map(float, given))
    unknown = [level for level in given if level not in classes]
    if unknown:
        raise InputError(f"class_weight names {unknown}, and the classes are {list(classes)}. Respell it.")
    return tuple(float(given.get(level, 1.0)) for level in classes)


def earlier_prior(given: Any, codebook: Codebook) -> EarlierPrior:
    """Return the prior that an earlier run found, verified.

    Parameters
    ----------
    given : fitted estimator, TableRun, path, or (Plan, Billboard)
        The earlier run; of a folder the public part is read.
    codebook : Codebook
        That of the new run. Features, interactions and target must be those of the earlier one, bounds
        included.
    """
    plan, board, units = _parts(given)
    if units is not None and _encoding(units) != _encoding(codebook):
        differing = [
            new.name
            for old, new in zip(
                (*units.features, units.target), (*codebook.features, codebook.target), strict=False
            )
            if old != new
        ]
        what = f"{differing[0]!r} differs" if differing else "the columns differ"
        raise InputError(
            f"start_from must be a run with the same codebook: {what}. Pass bounds= of the earlier run, or "
            "start anew."
        )
    return plan.prior_on(board)


def _encoding(codebook: Codebook) -> tuple[object, ...]:
    return codebook.features, codebook.interactions, codebook.target


def _parts(given: Any) -> tuple[Plan, Billboard, Codebook | None]:
    if isinstance(given, tuple) and len(given) == 2:
        plan, board = given
        if isinstance(plan, Plan) and isinstance(board, Billboard):
            return plan, board, None
    found = read_public(Path(given)) if isinstance(given, str | os.PathLike) else given
    found = getattr(found, "run_", found)
    if not isinstance(found, TableRun) or not isinstance(found.units, Codebook):
        got = f"{type(given).__name__}{' that is not fitted' if hasattr(given, 'fit') else ''}"
        raise InputError(
            "start_from must be a fitted estimator with bounds, the folder of a finished run, or (plan, "
            f"board). Got {got}."
        )
    return found.plan, found.board, found.units


def fit_in_folder(
    folder: Path,
    plan: Plan,
    tasks: Callable[[], Tasks | Shards],
    codebook: Codebook,
    settings: EstimatorSettings,
    *,
    record: RunRecord = RunRecord(),  # noqa: B008
    ledger: Ledger | None = None,
    random_state: int | None = None,
    force: bool = False,
    bar: Callable[[str], Move] = lambda label: lambda done, total: None,
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
    record : RunRecord
        Who approved the run, if somebody has. Who held the rows and which charge paid for it is added.
    ledger : Ledger, optional
        Charged once, however often the run goes on.
    random_state : int, optional
        Makes the run reproducible and INSECURE.
    force : bool
        Whether to replace an older run.
    bar : callable
        Returns, for a label, what is called with (done, in all): of rounds, and of models that are written.
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
        result = TableRun.of(done, codebook, settings)
        made = replace(record, rows_together=True).ended(ledger, plan.fingerprint)
        result = replace(result, record=made)
        models = counted(result.task_models(), len(result.ids), bar("Models"))
        write_run(draft, result, models if isinstance(data, Tasks) else None)
        begun = Secret.read(draft / "secret")
        assert begun is not None
        replace(Secret.new(data, begun.seed, begun.charged), run=begun.run).write(draft / "complete")

    private_folder(draft)
    rounds = bar("Rounds")
    try:
        finished = run(
            plan,
            data,
            ledger=ledger,
            random_state=random_state,
            progress=lambda step: rounds(step.done, step.total),
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
    return replace(TableRun.of(finished, codebook, settings), record=RunRecord.load(folder / RECORD))


def counted(models: Iterator[TaskModel], count: int, move: Move) -> Iterator[TaskModel]:
    """Yield models, and say how many of so many there were."""
    for number, model in enumerate(models, start=1):
        yield model
        move(number, count)


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
