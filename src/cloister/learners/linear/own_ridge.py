r"""Ridge regression alone: a task's own rows in its own units, decomposed once, over a grid of penalties.

Only the noise's scale, which tasks may tell each other, is left open. All of it is kept from round to round.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from cloister.core.arrays import Floats, States
from cloister.learners.linear.few_rows import EXACT
from cloister.learners.linear.home_constants import NUMBER
from cloister.learners.linear.own_units import OwnUnits, turned
from cloister.learners.linear.ridge import (
    ABSURD,
    RidgeFit,
    Spectrum,
    likelihood_left_out,
    ridge_fit,
    summary,
)

if TYPE_CHECKING:
    from cloister.core.tasks import Block
    from cloister.learners.home import Home


#: Penalties in own units, the last of which leaves no slope.
OWN_LAMBDAS = np.append(np.geomspace(*NUMBER.own_lambdas), 1 / EXACT)

_KEPT = "own_"


@dataclass(frozen=True, eq=False, repr=False)
class OwnRidge:
    """What a task's own rows say in its own units, whatever the noise's scale.

    Attributes
    ----------
    values : array of shape (tasks, k)
        Eigenvalues of the standardised rows (see `Spectrum`).
    inner : array of shape (tasks, k)
        Standardised targets by coordinates.
    left_out : array of shape (tasks, penalties)
        Log-likelihood of every row under a fit to the others.
    square, count : arrays of shape (tasks,)
        The sum of squares of standardised targets, and of weights.
    center, unit : arrays of shape (tasks,)
        Mean and spread of the targets.
    scale, shift, front
        The way to public units (see `OwnUnits`).
    basis : array of shape (tasks, features, k), optional
        The spectrum's basis; states of older versions do not have it.
    """

    values: Floats
    inner: Floats
    left_out: Floats
    square: Floats
    count: Floats
    center: Floats
    unit: Floats
    scale: Floats
    shift: Floats
    front: Floats | None = None
    basis: Floats | None = None

    @classmethod
    def of(cls, block: Block, intercept: bool) -> OwnRidge:
        """Standardise and decompose a block's rows, task by task."""
        with np.errstate(invalid="ignore", over="ignore"):  # a task whose targets are no data has none
            largest = np.abs(np.where(block.weight > 0, block.y, 0.0)).max(axis=1, initial=0.0)
        weight = np.where((largest < ABSURD)[:, None], block.weight, 0.0)
        units = OwnUnits.of(block.X, weight, intercept)
        y = np.where(units.weight > 0, block.y, 0.0)
        total = np.where(units.total > 0, units.total, 1.0)
        center = (units.weight * y).sum(axis=1) / total if intercept else np.zeros(len(block))
        away = np.where(units.weight > 0, y - center[:, None], 0.0)
        unit = np.sqrt((units.weight * away**2).sum(axis=1) / total)
        unit = np.where(unit > 1e-9 * np.abs(y).max(axis=1, initial=0.0), unit, 1.0)
        away /= unit[:, None]
        stats = summary(units.rows, away, units.weight)
        spectrum = stats.spectrum(None)
        square, inner, _ = stats.against(np.zeros(units.rows.shape[2]), spectrum)
        left_out = _left_out(units, away, spectrum, inner, intercept)
        back = units.scale, units.shift, units.front
        sums = inner, left_out, square, stats.count
        return cls(spectrum.values, *sums, center, unit, *back, spectrum.basis)

    def arrays(self) -> States:
        """Return it as a state."""
        found = {_KEPT + item.name: getattr(self, item.name) for item in fields(self)}
        return {name: array for name, array in found.items() if array is not None}

    @classmethod
    def kept(cls, states: States) -> OwnRidge:
        """Return what `arrays` put into a state."""
        return cls(*(states.get(_KEPT + item.name) for item in fields(cls)))  # type: ignore[arg-type]

    @classmethod
    def at(cls, home: Home, intercept: bool) -> OwnRidge:
        """Return what tasks know of it, or make it again, if an older version saved their states."""
        kept = cls.kept(home.states)
        return kept if kept.basis is not None else cls.of(home.rows, intercept)

    def spectrum(self, factor: Floats | None) -> Spectrum:
        """Return the spectrum for the identity; there is no other prior in own units."""
        assert factor is None
        nothing = np.zeros((*self.scale.shape, 0))
        return Spectrum(self.values, nothing if self.basis is None else self.basis, self._short)

    def against(self, center: Floats, spectrum: Spectrum) -> tuple[Floats, Floats, Floats]:
        """See `Summary`; the center is zero."""
        return self.square, self.inner, self.inner * self.values if self._short else self.inner

    @property
    def _short(self) -> bool:
        """Whether there are fewer rows than features."""
        return bool(self.values.shape[1] < self.scale.shape[1])

    def fit(self, scales: Floats) -> RidgeFit:
        """Fit every penalty, in own units; scales of the noise are relative to the targets' own variance."""
        width = self.scale.shape[1]
        return ridge_fit(self, np.zeros(width), np.eye(width), OWN_LAMBDAS, scales)

    @property
    def narrowness(self) -> Floats:
        """How many times narrower than usual the bounds' middle part is that a task's own features fill.

        A task knows this at home, where it is free. Slopes on such features are as many times longer, and so
        is how they differ between tasks; with all features taken together, as one of them may well be
        constant. Of few rows some are alike by chance: what they say is raised to a power that goes from 0 to
        1 with their number. A task whose features do not vary, or that has no rows, knows nothing of it: 1.
        """
        if self.front is None:
            return np.ones(len(self.scale))
        varies = self.scale > 0
        deviation = np.where(varies, self.front[:, None] / np.where(varies, self.scale, 1.0), 0.0)
        mean = np.square(np.minimum(deviation, 1.0)).sum(axis=1) / max(self.scale.shape[1], 1)
        typical = np.sqrt(mean)
        narrow = np.clip(NUMBER.narrow / np.maximum(typical, 1e-6), 1.0, 1 / NUMBER.narrowest)
        narrow = np.where(typical > 1e-6, narrow, 1.0)
        return np.asarray(narrow ** (1 - 1 / np.maximum(self.count, 1)))

    def to_public(self, fit: RidgeFit) -> RidgeFit:
        """Return the same fit in public units, its intercept around the own mean with a prior of one row."""
        assert self.basis is not None
        basis = turned(self.basis, self.scale, self.shift, self.front)
        unit, coordinates, spread, prior = self.unit[:, None, None], fit.coordinates, fit.spread, fit.prior
        coordinates = unit * coordinates
        if prior is not None:
            prior = turned(np.eye(self.scale.shape[1])[None], self.scale, self.shift, self.front)
        if self.front is not None:
            shape = (*coordinates.shape[:2], 1)
            mean = np.broadcast_to(self.center[:, None, None], shape)
            coordinates = np.concatenate([mean, coordinates], axis=2)
            sure = np.broadcast_to(1 / (1 + self.count)[:, None, None], shape)
            spread = np.concatenate([sure, spread], axis=2)
            prior = None if prior is None else prior[:, :, 1:]
        return replace(
            fit,
            center=np.zeros(basis.shape[1]),
            coordinates=coordinates,
            basis=basis,
            spread=spread,
            prior=None if prior is None else prior @ prior.swapaxes(1, 2),
            residual=self.unit[:, None] ** 2 * fit.residual,
        )


def _left_out(units: OwnUnits, y: Floats, spectrum: Spectrum, inner: Floats, intercept: bool) -> Floats:
    """See `RidgeFit.left_out`; one number a task and penalty. A weight counts as so many rows."""
    total = np.where(units.total > 0, units.total, 1.0)[:, None, None]
    along, kept = units.rows @ spectrum.basis, 1 / (spectrum.values[:, :, None] + OWN_LAMBDAS)
    residual = y[..., None] - along @ (inner[:, :, None] * kept)
    if spectrum.short:  # its basis is longer than the prior's own by the root of an eigenvalue
        real = spectrum.values > 1e-12 * spectrum.values.max(axis=1, keepdims=True, initial=0.0)
        kept = kept * np.where(real, 1 / np.where(real, spectrum.values, 1.0), 0.0)[:, :, None]
    leverage = np.square(along) @ kept
    if intercept:
        leverage += 1 / total
    return likelihood_left_out(units.weight, residual, leverage)
