"""Few-shot image classification: a public start learned from many tasks, then new classes from few images."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from cloister.algorithms.finetuning import FineTuning
from cloister.algorithms.meta import MetaSGD
from cloister.algorithms.server import ServerMomentum
from cloister.app.result import EstimatorSettings
from cloister.core.arrays import Array
from cloister.core.errors import InputError, PrivateDataError
from cloister.core.roster import Roster
from cloister.core.tasks import Tasks
from cloister.engines.run import Run, adapt, run
from cloister.estimators import notebook
from cloister.estimators.parameters import PrivacyBudget, check_count
from cloister.learners.descent import Descent
from cloister.ledger import Ledger
from cloister.networks.batched import Batched
from cloister.networks.module import Module
from cloister.networks.public_features import glyph_net
from cloister.plan.overlap import Overlap
from cloister.plan.plan import Plan
from cloister.privacy.sampling import Sampling

#: A round's local work, how far a task's gradient may reach, and what a task does in the end.
INNER = Descent(lr=0.1, batch=20, steps=6)
LAM, CLIP = 0.1, 0.05
ADAPTING = FineTuning(Descent(lr=0.1, steps=50))
#: Largest step of the public start, and the noise in a round's mean, in clips, from which on it is smaller.
STEP, RELATIVE_NOISE = 20.0, 0.07


@dataclass(eq=False, repr=False)
class FewShotClassifier(BaseEstimator):  # type: ignore[misc]
    """A network that learns new classes from a few images, meta-learned under task-level privacy.

    Parameters
    ----------
    net : nn.Module, optional
        Takes the rows of the tasks and puts out one score a class; its parameters are the public start. By
        default a small convolutional network (`cloister.learners.glyph_net`) for images of shape
        (1, height, width), or packed ones of 28 by 28 (`cloister.datasets.pack`). Images of bytes (uint8, of
        shape (channels, height, width)) become floats in [0, 1] first.
    epsilon : float, default=3.0
        PrivacyBudget; infinity for a run without noise.
    ways : int, default=5
        Most classes that a task may have.
    rounds : int, default=150
        Releases.
    delta : float or "auto"
        By default min(m^-1.5, 1/(10 m)) for m tasks.
    relation : {"replace", "zero_out"}
        Who counts as a neighbour.
    sampling : Sampling, optional
        Who takes part in a round; everyone by default.
    group_size : int, default=1
        Most tasks that one row may sit in: a public statement about how tasks are cut. Above 1 the guarantee
        says what a row's epsilon is. It is not checked, because whether some row is in a second task is an
        answer about private data; an operator who holds all rows may count with
        `cloister.plan.overlap.overlap`.
    device : str, default="cpu"
        Such as "cuda".
    ledger : Ledger, optional
        The account these tasks spend from.
    random_state : int, optional
        Makes noise reproducible and INSECURE: for tests and papers.

    Attributes
    ----------
    plan_, billboard_, guarantee_ : Plan, Billboard, Guarantee
        All public; the board holds the meta-model.

    Privacy
    -------
    Unit: a task with all its rows. What leaves a task is one clipped gradient in each round that it takes
    part in (see `MetaSGD`). `adapt` is free, for tasks of the fit and for new ones: nothing leaves them.

    References
    ----------
    Zhou and Bassily, "Task-level differentially private meta learning", NeurIPS 2022 (task-level private
    meta-learning, and its use on Omniglot).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.random((120, 1, 8, 8), dtype=np.float32), np.tile([0, 1], 60)
    >>> tasks = Tasks.from_arrays(X, y, np.repeat(np.arange(30), 4))
    >>> model = FewShotClassifier(epsilon=2.0, ways=2, rounds=2, random_state=0).fit(tasks)
    >>> model.guarantee_.epsilon <= 2.0
    True
    >>> model.adapt(X[:4], ["cat", "dog", "cat", "dog"]).predict(X[:2]).tolist()
    ['cat', 'dog']
    """

    net: Any = None
    _: KW_ONLY
    epsilon: float = 3.0
    delta: float | str = "auto"
    relation: str = "replace"
    ledger: Ledger | None = None
    random_state: int | None = None
    ways: int = 5
    rounds: int = 150
    sampling: Sampling | None = None
    group_size: int = 1
    device: str = "cpu"

    def plan(self, n_tasks: int, net: Any) -> Plan:
        """Return the plan that `fit` would run on so many tasks with this network."""
        check_count("group_size", self.group_size)
        algorithm = MetaSGD(Module(net), INNER, LAM, CLIP, self.rounds, tail=0.3, finetune=ADAPTING)
        budget = PrivacyBudget.of(self)
        assert budget is not None
        plan = _paced(budget.plan(algorithm, n_tasks), algorithm)
        return Overlap(self.group_size).mark(plan)

    def fit(self, tasks: Tasks) -> FewShotClassifier:
        """Learn the public start from tasks whose targets are 0 to ways - 1."""
        check_count("ways", self.ways)
        check_count("group_size", self.group_size)
        _check_targets(tasks, self.ways)
        tasks = replace(tasks, X=_pixels(tasks.X))
        net = self.net if self.net is not None else _net_for(tasks.X, self.ways)
        plan, engine = self.plan(len(tasks), net), self._engine
        _check_width(plan.algorithm.learner, tasks, self.ways)  # type: ignore[attr-defined]
        seed = self.random_state
        finished = run(plan, tasks, random_state=seed, ledger=self.ledger, engine=engine, finish=False)
        return self.use_run(finished)

    def use_run(self, run: Run) -> FewShotClassifier:
        """Take what is public of a finished run for the fit."""
        self.plan_, self.billboard_, self.guarantee_ = run.plan, run.board, run.guarantee
        return self

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the public start to a new folder: plan, board and settings, and nothing of any task.

        A file describes a network and cannot hold it: ``cloister.load(folder, types=[Module(net)])`` takes
        the same one and gives the estimator back.
        """
        check_is_fitted(self, "billboard_")
        home = Run.public(self.plan_, self.billboard_, Roster(())).save(folder)
        EstimatorSettings.of(self, np.array([]), named=False).save(home / "estimator.toml")
        return home

    def _html_repr(self) -> str:
        return notebook.diagram(self)

    def _get_params_html(self, deep: bool = True, doc_link: str = "") -> Any:
        return notebook.parameters(super()._get_params_html(deep, doc_link))

    def _get_fitted_attr_html(self, doc_link: str = "") -> Any:
        return notebook.public_attributes(super()._get_fitted_attr_html(doc_link))

    @property
    def _engine(self) -> Batched:
        return Batched(self.device, compiled=False)

    def adapt(self, X: ArrayLike, y: ArrayLike) -> FewShotModel:
        """Return a classifier for one task, learned from the public start with its own few rows."""
        check_is_fitted(self, "billboard_")
        classes, target = np.unique(np.asarray(y), return_inverse=True)
        if len(classes) > self.ways:
            raise InputError(f"A task may have {self.ways} classes. Got {len(classes)}. Fit with ways= more.")
        rows = _pixels(np.asarray(X))
        if rows.ndim < 2 or len(rows) != len(target) or not len(rows):
            raise InputError(
                "adapt takes the rows of one task, at least one, and a class for each. "
                f"Got rows of shape {rows.shape} and {len(target)} classes."
            )
        own = Tasks.from_arrays(rows, target, np.zeros(len(rows), dtype=np.int64))
        coef = adapt(self.plan_, self.billboard_, own, engine=self._engine)["coef"]
        return FewShotModel(self.plan_.algorithm.learner, classes, coef)  # type: ignore[attr-defined]


@dataclass(frozen=True, eq=False, repr=False)
class FewShotModel:
    """One task's own classifier; it is that task's alone."""

    learner: Module
    classes: Array
    coef: NDArray[np.float32]

    def __repr__(self) -> str:
        return f"FewShotModel({len(self.classes)} classes, private)"

    def predict(self, X: ArrayLike) -> Array:
        """Return the class of each image, by the names that `adapt` was given."""
        scores = self.learner.predict(self.coef, _pixels(np.asarray(X))[None])[0]
        return np.asarray(self.classes[scores[:, : len(self.classes)].argmax(axis=1)])


def _paced(plan: Plan, algorithm: MetaSGD) -> Plan:
    """Let the public start take smaller steps the larger its noise, which is a public number."""
    server = ServerMomentum(STEP * min(1.0, RELATIVE_NOISE / max(plan.relative_noise, 1e-12)) ** 2, beta=0.9)
    return replace(plan, algorithm=replace(algorithm, server=server))


def _pixels(X: Array) -> Array:
    """Return images of bytes, of shape (rows, channels, height, width), as floats in [0, 1]; others as is."""
    return X.astype(np.float32) / np.float32(255) if X.dtype == np.uint8 and X.ndim == 4 else X


def _check_width(learner: Module, tasks: Tasks, ways: int) -> None:
    """Refuse a network with fewer scores than classes, tried on a row of zeros."""
    learner.try_rows(tasks.X[:0], tasks.y[:0])
    nobody = np.zeros((1, 1, *tasks.X.shape[1:]), dtype=tasks.X.dtype)
    scores = learner.predict(learner.start()[None], nobody)
    if scores.ndim != 3 or scores.shape[2] < ways:
        raise InputError(
            f"The network must put out one score for each of ways={ways} classes. Got shape "
            f"{scores.shape[2:]} a row. Widen its last layer, or lower ways."
        )


def _check_targets(tasks: Tasks, ways: int) -> None:
    found = tasks.y
    if found.dtype.kind not in "iu" or not np.isin(found, np.arange(ways)).all():
        raise PrivateDataError(
            f"Targets must be whole numbers from 0 to {ways - 1}: each task's own numbering of its classes. "
            "Recode them, or set ways= to the most classes of a task."
        )


def _net_for(X: Array, ways: int) -> Any:
    shape = X.shape[1:]
    if X.dtype.kind in "iu" and shape == (98,):
        return glyph_net(ways)
    if X.dtype.kind == "f" and len(shape) == 3 and not (shape[1] % 2 or shape[2] % 2):
        return glyph_net(ways, shape=shape, packed=False)
    raise InputError(
        "The default network takes images as floats of shape (rows, channels, height, width), height and "
        f"width even, or packed ones of 28 by 28. Got {X.dtype} of shape {X.shape}. Pass a net."
    )
