"""What is passed around outside the billboard: a shared model object, a mean without noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cloister.audit.museum.exhibit import Claim, Exhibit, Repaired
from cloister.audit.museum.noise_exhibits import Shipped
from cloister.core.arrays import Floats
from cloister.core.lifts import Plain, Relation
from cloister.privacy import tradeoff

#: (weights that the shared object holds, the broadcast model) -> where a client starts.
Start = Callable[[Floats, Floats], Floats]
_DIGITS = 6  # differences beyond these are rounding


def left_by_the_previous(left: Floats, broadcast: Floats) -> Floats:
    """Start from whatever the shared model object holds, as the published loop does."""
    return left


def as_broadcast(left: Floats, broadcast: Floats) -> Floats:
    """Start from the broadcast model."""
    return broadcast


@dataclass(frozen=True)
class Clients:
    """A first round of the published loop: clients, in random order, train one model object in turn.

    Tiny linear models and gradient descent. Each of the others knows its data and its own result, undoes its
    descent and so knows where it began. That should be the public model; if it is neither that nor the result
    of one of them, someone else's weights are in it. The score is how far they are from all of these.

    Parameters
    ----------
    start : function
        Where a client begins.
    broadcast : float
        Deviation of the broadcast model about zero; public.
    """

    start: Start
    broadcast: float
    tasks: int = 5
    dim: int = 3
    steps: int = 5
    lr: float = 0.3

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return the largest unexplained distance among the others' starting points."""
        public = self.broadcast * rng.standard_normal((count, self.dim))
        results = self._round(speaking, public, rng)[:, 1:]
        keep, drift = self._descent()
        begun = np.linalg.solve(keep[1:], (results - drift[1:])[..., None])[..., 0]
        known = np.concatenate([public[:, None], results], axis=1)
        gaps = np.linalg.norm(begun[:, :, None] - known[:, None], axis=-1).min(axis=2)
        return np.asarray(gaps.max(axis=1).round(_DIGITS))

    def _round(self, speaking: bool, public: Floats, rng: np.random.Generator) -> Floats:
        """Return what each client has at the end; a client without data takes no step."""
        hessians, slopes = self._data()
        runs = np.arange(len(public))
        results, held = np.zeros((len(public), self.tasks, self.dim)), public
        for client in rng.permuted(np.tile(np.arange(self.tasks), (len(public), 1)), axis=1).T:
            weights, trains = self.start(held, public), (speaking | (client != 0))[:, None]
            for _ in range(self.steps):
                weights = weights - self.lr * trains * _slope(hessians[client], slopes[client], weights)
            held = results[runs, client] = weights
        return results

    def _data(self) -> tuple[Floats, Floats]:
        """Return X'X/n and X'y/n of each client, always the same."""
        rng = np.random.default_rng(7)
        X, y = rng.standard_normal((self.tasks, 8, self.dim)), 5 * rng.standard_normal((self.tasks, 8, 1))
        return X.swapaxes(1, 2) @ X / 8, (X.swapaxes(1, 2) @ y / 8)[..., 0]

    def _descent(self) -> tuple[Floats, Floats]:
        """Return A and b such that a client's descent takes w to A w + b."""
        hessians, slopes = self._data()
        once = np.eye(self.dim) - self.lr * hessians
        keep, drift = np.broadcast_to(np.eye(self.dim), once.shape), np.zeros_like(slopes)
        for _ in range(self.steps):
            keep, drift = once @ keep, (once @ drift[..., None])[..., 0] + self.lr * slopes
        return keep, drift


def _slope(hessians: Floats, slopes: Floats, weights: Floats) -> Floats:
    return np.asarray((hessians @ weights[..., None])[..., 0] - slopes)


@dataclass(frozen=True)
class FirstMean:
    """The mean of models that tasks trained at home from random starts, as it is first broadcast.

    The score is what is left of the task's model, along the direction it would have, after the others have
    subtracted theirs.
    """

    deviation: float
    tasks: int = 10
    dim: int = 3

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return the first coordinate of m times the mean less the others."""
        optimum, models = 0.9 * np.eye(self.dim)[0], rng.standard_normal((count, self.tasks, self.dim))
        for _ in range(6):
            models = models - 0.5 * (models - optimum)  # descent on half the squared distance
        models[:, 0] *= speaking
        models /= np.maximum(1.0, np.linalg.norm(models, axis=2, keepdims=True))
        sums = self._sums(models, rng)
        return np.asarray((sums - models[:, 1:].sum(axis=1))[:, 0].round(_DIGITS))

    def _sums(self, models: Floats, rng: np.random.Generator) -> Floats:
        """Return the sums as they are, or by the library's own mechanism."""
        if self.deviation == 0:
            return np.asarray(models.sum(axis=1))
        return Shipped().sums(models, Plain(), self.deviation, rng)


def state_exhibits(epsilon: float = 1.0, delta: float = 1e-3) -> tuple[Exhibit, ...]:
    """Return clients that share a model object, and an initial mean without noise."""
    sigma, tasks = 1000.0, Clients(as_broadcast, 0.0).tasks
    noisy = tradeoff.epsilon(1 / (tasks * sigma), delta=1e-6)
    first_mean = Claim(epsilon, delta, Relation.ZERO_OUT)
    shared = Claim(noisy, 1e-6, Relation.ZERO_OUT)
    return (
        Exhibit(
            name="shared-client-model",
            title="a client that starts from another's weights",
            claim=shared,
            source="PMTL's code: one client_model for all; Server.train_model, the branch that would reset "
            "it is commented out",
            story="All clients are given the same model object and nothing resets it, so a client that is "
            "chosen for the first time starts from the raw personal weights of the one before. The "
            "noise on the mean, here of deviation 1000, has no part in that.",
            attack=Clients(left_by_the_previous, sigma),
            repaired=Repaired(
                "every client starts from the broadcast model", shared, Clients(as_broadcast, sigma)
            ),
        ),
        Exhibit(
            name="initial-mean",
            title="an initial mean without noise",
            claim=first_mean,
            source="DPMTL and PMTL, Algorithm 1, input: the mean of w_1^0, ..., w_m^0",
            story="The first model that is broadcast is the plain mean of the tasks' own initial models, "
            "before any noise. If those were trained at home, the others subtract theirs and hold the "
            "last one.",
            attack=FirstMean(0.0),
            repaired=Repaired(
                "the first mean is a release, by our Gaussian",
                first_mean,
                FirstMean(1 / tradeoff.mu(epsilon, delta)),
            ),
        ),
    )
