"""Reading back what was saved: a run as the estimator that made it, a file as what it says it is."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Iterable
from inspect import signature
from pathlib import Path
from typing import Any

from cloister.app.folder import read_plan, read_run
from cloister.app.outcomes import has_outcomes, runs_in
from cloister.app.result import EstimatorSettings, TableRun
from cloister.app.task_model import TaskModel
from cloister.core.document import ESTIMATORS, library_class
from cloister.core.errors import InputError
from cloister.engines.run import Run
from cloister.plan.plan import Plan
from cloister.privacy.mechanisms import Gaussian
from cloister.privacy.sampling import Everyone
from cloister.store.billboard import Billboard
from cloister.tables.codebook import Codebook


def load(path: str | os.PathLike[str], types: Iterable[object] = ()) -> Any:
    """Read back whatever this library has written: a run's folder, or one of its files.

    Parameters
    ----------
    path : path
        A folder that `save`, ``fit(journal=)`` or ``cloister fit`` left: of its tasks those have a model
        again whose files are there; the others are served from the board, as tasks that were not in `fit`.
        So the public part alone can be loaded too. Or the journal of a finished `run` or of a stream that has
        ended. Or a file: one task's model, a plan, a codebook, a board.
    types : iterable, optional
        Classes of your own, or the `Module` of a network, that the plan names.

    Returns
    -------
    estimator, TableRun, Run, TaskModel, Plan, Codebook or Billboard
        Of a folder the fitted estimator that made the run; for a run that none of this library's made, a
        `TableRun`, which predicts, replays and exports; of a journal, the public part of a `Run`. Of a file
        what it says it is.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from cloister import SharedPriorRegressor
    >>> x, school = np.linspace(0, 1, 40), np.repeat(np.arange(10), 4)
    >>> model = SharedPriorRegressor("school", bounds={"x": (0, 1), "y": (0, 1)}, random_state=0)
    >>> model = model.fit({"school": school, "x": x}, x)
    >>> with tempfile.TemporaryDirectory() as home:
    ...     again = load(model.save(f"{home}/run"))
    >>> again
    SharedPriorRegressor(...)
    >>> bool((again.predict({"school": school, "x": x}) == model.predict({"school": school, "x": x})).all())
    True
    """
    place = Path(path)
    if place.is_file():
        return _read_file(place, types)
    of_table = any((place / name).exists() for name in ("codebook.toml", "head.txt"))
    if (place / "board").is_file() and not of_table:
        done, said = Run.load(place, types), place / "estimator.toml"
        return _started(EstimatorSettings.load(said), done) if said.exists() else done
    if has_outcomes(place):
        several = library_class("cloister/several-outcomes/1", ESTIMATORS)
        return several.of({name: load(folder, types) for name, folder in runs_in(place).items()})
    found = read_run(place, types)
    name = found.settings.name
    return _fitted(library_class(name, ESTIMATORS), found) if name.startswith("cloister/") else found


def _read_file(path: Path, types: Iterable[object]) -> Any:
    """Read a file as what it says it is."""
    beginning = path.read_bytes()[:64].lstrip()
    if beginning.startswith(b"cloister billboard"):
        return Billboard.load(path)
    if beginning.startswith(b"{"):
        return TaskModel.load(path)
    try:
        keys = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise InputError(
            f"{path} is nothing that can be loaded: a task's model, a plan, a codebook or a board. Name one, "
            "or the folder of a run."
        ) from None
    return read_plan(path, types) if "algorithm" in keys else Codebook.load(path)


def _fitted(kind: Any, found: TableRun) -> Any:
    estimator = _made(kind, found.settings, found.plan, {"bounds": found.codebook})
    estimator.reader.check_target(found.codebook)
    return estimator.use_run(found)


def _started(settings: EstimatorSettings, done: Run) -> Any:
    """Return the estimator of images that a public start was learned by."""
    net = getattr(done.plan.algorithm.network, "net", None)
    return _made(library_class(settings.name, ESTIMATORS), settings, done.plan, {"net": net}).use_run(done)


def _made(kind: Any, settings: EstimatorSettings, plan: Plan, parts: dict[str, object]) -> Any:
    try:
        return kind(**settings.parameters, **_of_plan(kind, plan), **parts)
    except TypeError as error:
        raise InputError(
            f"estimator.toml has settings that {kind.__name__} does not take: {error}. Restore the file."
        ) from None


def _of_plan(kind: Any, plan: Plan) -> dict[str, Any]:
    """Return the parameters that the plan says, and not the settings, where they are not the default."""
    said: dict[str, Any] = {}
    if plan.sampling != Everyone():
        said["sampling"] = plan.sampling
    noisy = plan.has_rounds and plan.mechanism.budget < math.inf
    if noisy and plan.mechanism.scaled(1.0) != Gaussian(1.0):
        said["mechanism"] = plan.mechanism
    if plan.trust.at_home:
        said["trust"] = plan.trust
    if plan.unit.by_record:
        said["unit"] = plan.unit
    return {name: value for name, value in said.items() if name in signature(kind).parameters}
