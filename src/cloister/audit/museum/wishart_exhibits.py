r"""Noise with :math:`d + 1` degrees of freedom on a covariance of models: as released, as used, and on W'W.

The density of the noise is :math:`\propto e^{-\epsilon\,\mathrm{tr}E/K^2}` on positive matrices and zero
elsewhere. A task that said :math:`w` leaves :math:`\Sigma - \Sigma_{others} - ww'` positive. A silent one
does so with probability :math:`e^{-\epsilon|w|^2/K^2}` only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from scipy.integrate import quad
from scipy.special import gammainc, gammaincc

from cloister.audit.fixtures import PublishedWishart, TaskRelationship
from cloister.audit.museum.exhibit import Claim, Exhibit, Repaired
from cloister.audit.museum.noise_exhibits import Shipped
from cloister.core.arrays import Floats
from cloister.core.lifts import Outer, Relation, unsvec
from cloister.privacy import tradeoff

#: Far more than rounding, far less than the eigenvalues it is compared with.
_ROUNDING = 1e-9


class OuterProductNoise(Protocol):
    """Noise on a sum of outer products."""

    def covariances(self, messages: Floats, rng: np.random.Generator) -> Floats:
        """Return a noisy sum of outer products for each run; `said` has shape (runs, tasks, dim)."""


@dataclass(frozen=True)
class WishartNoise:
    """The published noise, for models clipped to 1."""

    epsilon: float

    def covariances(self, messages: Floats, rng: np.random.Generator) -> Floats:
        runs, _, dim = messages.shape
        noise = PublishedWishart(self.epsilon).draw(np.zeros((dim, dim)), rng, runs)
        return np.asarray(messages.swapaxes(1, 2) @ messages + noise)


@dataclass(frozen=True)
class ShippedGaussian:
    """The library's own release: `Gaussian` on a channel that says outer products."""

    deviation: float
    exact: bool = True

    def covariances(self, messages: Floats, rng: np.random.Generator) -> Floats:
        released = Shipped(self.exact).sums(messages, Outer(), self.deviation, rng)
        return unsvec(released, messages.shape[2])


@dataclass(frozen=True)
class CovarianceRelease:
    """One noisy sum of outer products; the score is the least eigenvalue that speech would leave over."""

    noise: OuterProductNoise
    dim: int = 5
    others: int = 10

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return scores, at most zero; below it the task cannot have spoken."""
        return np.minimum(0.0, least_eigenvalue(self.left(speaking, count, rng)))

    def left(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return releases less what the others said and what the task would have said."""
        models = directions(self.others + 1, self.dim)
        given = models * np.where(np.arange(len(models)) > 0, 1.0, speaking)[:, None]
        releases = self.noise.covariances(np.broadcast_to(given, (count, *given.shape)), rng)
        return np.asarray(releases - models.T @ models)


@dataclass(frozen=True)
class LowRankOutputs:
    r"""Algorithm 2, all steps of it, of which the others see their own models and nothing else.

    Each round they know what they said, :math:`\tilde w_j`, and are handed :math:`\hat w_j = M\tilde w_j`.
    Least squares gives :math:`M`; undoing the shrinkage :math:`1 - \eta\lambda/\sqrt\Lambda` of its
    eigenvalues gives :math:`\Sigma`. A direction that is shrunk to nothing has
    :math:`\Lambda \le (\eta\lambda)^2`; taking the upper end errs in favour of the accused.

    Parameters
    ----------
    noise : Noise
        On each round's covariance.
    shift : float
        Public number added to its eigenvalues, lest they be negative.
    rounds, dim, others : int
        Sizes.
    """

    noise: OuterProductNoise
    shift: float = 0.0
    rounds: int = 2
    dim: int = 5
    others: int = 12

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return the least eigenvalue that speech would leave over in any round, if below zero."""
        optima = 3 * directions(self.others + 1, self.dim)
        given = optima.copy()
        given[0] *= speaking  # a task without signal has its optimum, and its start, at zero
        outputs = self._train(np.broadcast_to(given, (count, *given.shape)), rng)
        return self._attack(optima, [models[:, 1:] for models in outputs])

    def _train(self, optima: Floats, rng: np.random.Generator) -> list[Floats]:
        """Return what tasks are handed in each round (Algorithm 2, Steps 3 to 11)."""
        tasks, outputs = _Homes(optima), []
        for t in range(1, self.rounds + 1):
            messages = tasks.messages
            covariance = self.noise.covariances(messages, rng)
            values, vectors = np.linalg.eigh(covariance)
            kept = np.maximum(0.0, 1 - _STEP / np.sqrt(np.maximum(values + self.shift, 1e-300)))
            outputs.append(messages @ (vectors * kept[:, None]) @ vectors.swapaxes(1, 2))
            tasks.descend(outputs[-1], t)
        return outputs

    def _attack(self, optima: Floats, outputs: list[Floats]) -> Floats:
        """Recover each round's covariance from the others' own models; the suspect's data are supposed."""
        count = len(outputs[0])
        others = _Homes(np.broadcast_to(optima[1:], (count, self.others, self.dim)))
        suspect = _Homes(np.broadcast_to(optima[:1], (count, 1, self.dim)))
        least = np.full(count, math.inf)
        for t, handed in enumerate(outputs, start=1):
            matrix = np.linalg.pinv(others.messages) @ handed
            values, vectors = np.linalg.eigh((matrix + matrix.swapaxes(1, 2)) / 2)
            squares = (_STEP / (1 - np.maximum(values, 0.0))) ** 2 - self.shift
            covariance = (vectors * squares[:, None]) @ vectors.swapaxes(1, 2)
            messages = np.concatenate([others.messages, suspect.messages], axis=1)
            least = np.minimum(least, least_eigenvalue(covariance - messages.swapaxes(1, 2) @ messages))
            shared = suspect.messages @ matrix
            others.descend(handed, t)
            suspect.descend(shared, t)
        return np.minimum(0.0, least + _ROUNDING)


#: Step size times penalty, and the step size, of Algorithm 2 in the exhibit.
_STEP, _LR = 0.05, 0.5


class _Homes:
    """Tasks' models at home, with squared distance to an optimum as the loss; W(0) is the single-task fit."""

    def __init__(self, optima: Floats) -> None:
        self._optima = self._models = optima
        self._previous = self.messages

    @property
    def messages(self) -> Floats:
        """The clipped models (Step 3)."""
        lengths = np.linalg.norm(self._models, axis=-1, keepdims=True)
        return np.asarray(self._models / np.maximum(1.0, lengths))

    def descend(self, shared: Floats, t: int) -> None:
        """Take in the projected models; go on by momentum and a gradient step (Steps 10 and 11)."""
        ahead = shared + (t - 1) / (t + 2) * (shared - self._previous)
        self._models, self._previous = ahead - _LR * (ahead - self._optima), shared


@dataclass(frozen=True)
class RelationshipRelease:
    r"""The m x m matrix W'W with noise, all models aligned; an output may be impossible in either world."""

    noise: OuterProductNoise
    tasks: int = 20

    def draw(self, speaking: bool, count: int, rng: np.random.Generator) -> Floats:
        """Return scores: below zero where speech is impossible, above where silence is."""
        with_task, without_task = self.statistics()
        nothing = np.broadcast_to(np.zeros((1, self.tasks)), (count, 1, self.tasks))
        releases = (with_task if speaking else without_task) + self.noise.covariances(nothing, rng)
        against, for_it = (np.minimum(0.0, least_eigenvalue(releases - s)) for s in (with_task, without_task))
        return np.asarray(against - for_it)

    def statistics(self) -> tuple[Floats, Floats]:
        """Return W'W with the first task speaking, and silent."""
        models = np.ones((self.tasks, 1))
        speaking = np.arange(self.tasks)[:, None] > 0
        relationship = TaskRelationship()
        return relationship.statistic(models), relationship.statistic(models * speaking)

    def impossible(self, epsilon: float) -> float:
        """Return the exact chance that published noise on silence makes an output which speech cannot.

        The difference of the two statistics has rank two, with eigenvalues a > 0 > -b. Whether the rest is
        positive is decided by the noise's Schur complement on that plane, which is the published noise in two
        dimensions: density proportional to exp(-epsilon (x + y)) for diagonal entries x, y and an entry
        off it whose square is at most xy and (x - a)(y + b). All but x is integrated in closed form.
        """
        with_task, without_task = self.statistics()
        values = np.linalg.eigvalsh(with_task - without_task)
        a, b = epsilon * values[-1], -epsilon * values[0]

        def density(x: float) -> float:
            turn = b * (x - a) / a  # of y: below it xy is the smaller of the two
            below = math.sqrt(x) * gammainc(1.5, turn)
            above = math.sqrt(x - a) * math.exp(b) * gammaincc(1.5, turn + b)
            return float((below + above) * math.exp(-x))

        integral, _ = quad(density, a, math.inf)
        return float(1 - integral / math.gamma(1.5))


def directions(count: int, dim: int) -> Floats:
    """Return models of length 1, always the same."""
    drawn = np.random.default_rng(2024).standard_normal((count, dim))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


def least_eigenvalue(matrices: Floats) -> Floats:
    return np.asarray(np.linalg.eigvalsh(matrices)[:, 0])


def wishart_exhibits(epsilon: float = 1.0, delta: float = 1e-5) -> tuple[Exhibit, ...]:
    """Return the published noise on the release, on what tasks are handed, and on W'W.

    Parameters
    ----------
    epsilon : float
        What is claimed in all, with delta 0.
    delta : float
        Of the repaired ones.
    """
    claim, sound = Claim(epsilon, 0.0, Relation.REPLACE), Claim(epsilon, delta, Relation.ZERO_OUT)
    deviation = 1 / tradeoff.mu(epsilon, delta)
    release = Exhibit(
        name="wishart-release",
        title="Wishart noise with d + 1 degrees of freedom",
        claim=claim,
        source="MP-MTL (arXiv:1809.06546), Algorithm 1 and Theorem 1; after Jiang, Xie, Zhang (AAAI 2016)",
        story="The noise is positive definite, so a release less what a task said is positive too. If the "
        "task was silent it is not, with probability 1 - exp(-epsilon): such an output is impossible "
        "under the neighbour. The proof bounds a ratio of densities where both are positive and "
        "forgets the rest.",
        attack=CovarianceRelease(WishartNoise(epsilon)),
        repaired=Repaired("our Gaussian", sound, CovarianceRelease(ShippedGaussian(deviation))),
        impossible=-math.expm1(-epsilon),
    )
    return (
        release,
        _outputs(release, claim, sound, deviation),
        _relationship(release, claim, sound, deviation),
    )


def _outputs(release: Exhibit, claim: Claim, sound: Claim, deviation: float) -> Exhibit:
    broken = LowRankOutputs(WishartNoise(claim.epsilon / 2))  # two rounds share the budget
    each = math.sqrt(broken.rounds) * deviation
    shift = each * (math.sqrt(2 * broken.dim) + math.sqrt(2 * math.log(2 * broken.rounds / 1e-3)))
    return replace(
        release,
        name="wishart-outputs",
        title="the same noise, seen through the models of Algorithm 2",
        source="MP-MTL, Algorithm 2 and Corollary 1",
        story="Nobody is shown the noisy covariance, but the others know what they said and what they got "
        "back: least squares gives the projection, whose eigenvalues give those of the covariance. "
        "Over the rounds an impossible output has probability 1 - exp(-sum of the epsilons), as if "
        "all had been published.",
        attack=broken,
        repaired=Repaired(
            "our Gaussian and a public shift",
            sound,
            replace(broken, noise=ShippedGaussian(each), shift=shift),
        ),
    )


def _relationship(release: Exhibit, claim: Claim, sound: Claim, deviation: float) -> Exhibit:
    broken = RelationshipRelease(WishartNoise(claim.epsilon))
    reach = TaskRelationship().sensitivity(broken.tasks, Relation.ZERO_OUT)
    return replace(
        release,
        name="wishart-relationship",
        title="the same noise on W'W, the inner products of tasks",
        source="MP-MTL, Algorithm 1, Steps 4 and 5 (in brackets), and Theorem 1, Case 2",
        story="One task fills a row and a column of W'W, so the change is indefinite and grows with the "
        "number of tasks; the proof looks at its trace, which does not. With models aligned there are "
        "outputs that speech cannot make and outputs that silence cannot make.",
        attack=broken,
        repaired=Repaired(
            "our Gaussian for the sensitivity sqrt(2m - 1)",
            sound,
            replace(broken, noise=ShippedGaussian(reach * deviation)),
        ),
        impossible=broken.impossible(claim.epsilon),
    )
