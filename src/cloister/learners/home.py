"""What a task has at home in a round: its rows, in units that tasks have found together, and its state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cloister.core.arrays import Floats, Integers, States
from cloister.core.findings import Population
from cloister.core.spelling import counted
from cloister.core.tasks import Block

#: Of a model's arrays those that are weights, and the one that is a part of them beside what has the center.
WEIGHTS, PART = ("coef", "alone", "shared", "own"), "own"


@dataclass(frozen=True, eq=False)
class Units:
    """Public units of targets and columns, in the codebook's: an affine change, there and back.

    Parameters
    ----------
    constant : float
        What column 0 has in front of all others, where no rows say it.
    target : pair of float, optional
        Center and unit of the targets; None leaves them as they are.
    centers, units : arrays of shape (columns,), optional
        The same of the columns, column 0 with 0 and 1.
    shortens : bool
        Whether rows are made shorter, with their targets: with classes, which have no length, they are not.
    """

    constant: float
    target: tuple[float, float] | None = None
    centers: Floats | None = None
    units: Floats | None = None
    shortens: bool = True

    def rows(self, block: Block) -> tuple[Block, Floats]:
        """Return rows in these units, all of a task's over the length of its longest, and these lengths.

        To shorten rows and targets by one factor leaves weights as they are. Padding is left at zero; rows
        are the very same where nothing changes.
        """
        if self.target is not None:
            center, unit = self.target
            with np.errstate(invalid="ignore", over="ignore"):
                y = (block.y - center) / unit
            block = replace(block, y=np.where(block.weight > 0, y, 0.0))
        if self.centers is None or self.units is None or not (self.centers.any() or np.any(self.units != 1)):
            return block, np.ones(len(block))
        with np.errstate(invalid="ignore", over="ignore"):
            X = block.X - self.constant * self.centers
            X /= self.units
        X[block.weight <= 0] = 0.0
        if not self.shortens:
            return replace(block, X=X), np.ones(len(block))
        lengths = _lengths(X)
        X /= lengths[:, None, None]
        return replace(block, X=X, y=block.y / lengths[:, None]), lengths

    def models(
        self, models: States, constant: Floats | float | None = None, lengths: Floats | None = None
    ) -> States:
        """Return models in the codebook's units, of tasks with such a constant in column 0, and lengths."""
        found, turn = dict(models), self._turn
        if turn is not None:
            # Each task by itself: a product of all tasks' rows has other last bits with their number.
            found |= {name: (models[name][:, None] @ turn.T)[:, 0] for name in WEIGHTS if name in models}
            if "covariance" in models:
                found["covariance"] = turn @ models["covariance"] @ turn.T
        if lengths is not None and "noise" in models:
            found["noise"] = models["noise"] * lengths**2
        if self.target is None:
            return found
        center, unit = self.target
        weights = {name: unit * found[name] for name in WEIGHTS if name in found}
        for name in weights.keys() - {PART}:
            weights[name][:, 0] += center / (self.constant if constant is None else constant)
        return (
            found
            | weights
            | {name: unit**2 * found[name] for name in ("covariance", "noise") if name in found}
        )

    def population(self, found: Population) -> Population:
        """Return a population in the codebook's units."""
        turn, (center, unit) = self._turn, self.target or (0.0, 1.0)
        mean, squares = found.mean, (found.covariance, found.scatter, found.spread)
        if turn is not None:
            mean = None if mean is None else turn @ mean
            squares = tuple(None if one is None else turn @ one @ turn.T for one in squares)  # type: ignore[assignment]
        residual = found.residual
        if self.target is not None:
            if mean is not None:
                mean = unit * mean
                mean[0] += center / self.constant
            squares = tuple(None if one is None else unit**2 * one for one in squares)  # type: ignore[assignment]
            residual = None if residual is None else unit**2 * residual
        return Population(mean, found.significant, *squares, residual, found.explained)

    @property
    def _turn(self) -> Floats | None:
        """The matrix that turns weights on columns in these units into weights on the codebook's."""
        if self.centers is None or self.units is None:
            return None
        turn = np.diag(1 / self.units)
        turn[0, 1:] = (-self.centers / self.units)[1:]
        return turn


def _lengths(X: Floats) -> Floats:
    """Return the length of each task's longest row, or 1 if that is longer."""
    with np.errstate(invalid="ignore", over="ignore"):
        length = np.sqrt(np.square(X).sum(axis=2).max(axis=1, initial=1.0))
    return np.where(np.isfinite(length), length, 1.0)


@dataclass(frozen=True, eq=False, repr=False)
class Home:
    """A block of tasks in a round. Private.

    Parameters
    ----------
    states : dict of arrays
        What they know from earlier rounds.
    block : Block
        Their rows, in the codebook's units.
    units : Units, optional
        Those of `rows`; None for the codebook's.
    """

    states: States
    block: Block
    units: Units | None = None

    @cached_property
    def _relative(self) -> tuple[Block, Floats]:
        return (self.block, np.ones(len(self.block))) if self.units is None else self.units.rows(self.block)

    @property
    def rows(self) -> Block:
        """The rows in the units that are known by now: made when they are first looked at."""
        return self._relative[0]

    def __len__(self) -> int:
        return len(self.block)

    def __repr__(self) -> str:
        return f"Home({counted(len(self), 'task')}, private)"

    def take(self, places: Integers) -> Home:
        """Return some of the tasks."""
        states = {name: array[places] for name, array in self.states.items()}
        return Home(states, self.block.take(places), self.units)

    def apart(self, kinds: Integers, function: Callable[[Home, int], States]) -> States:
        """Call a function for the tasks of each kind, and put what it returns into their order."""
        there = np.unique(kinds)
        if len(there) <= 1:
            return function(self, int(there[0]) if len(there) else -1)
        places = [np.flatnonzero(kinds == kind) for kind in there]
        parts = [function(self.take(at), int(kind)) for kind, at in zip(there, places, strict=True)]
        back = np.argsort(np.concatenate(places))
        return {name: np.concatenate([part[name] for part in parts])[back] for name in parts[0]}

    def knowing(self, states: States) -> Home:
        """Return the same tasks with more in their states."""
        home = replace(self, states=self.states | states)
        if "_relative" in vars(self):
            vars(home)["_relative"] = self._relative
        return home

    def in_codebook(self, models: States) -> States:
        """Return models of these tasks in the codebook's units."""
        if self.units is None:
            return models
        lengths = None if self.units.centers is None else self._relative[1]
        with np.errstate(all="ignore"):  # data that are not finite count as no data
            total = self.block.weight.sum(axis=1)
            own = (self.block.weight * self.block.X[..., 0]).sum(axis=1) / np.where(total > 0, total, 1.0)
        constant = np.where(np.isfinite(own) & (own != 0), own, self.units.constant)
        return self.units.models(models, constant, lengths)
