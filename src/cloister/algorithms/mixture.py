r"""Several meta-models at once: each task starts from the one that suits it.

There are q meta-models, and a task solves its problem from each and keeps the one with the least
:math:`R_k(w) + \frac\lambda2|w - h_j|^2`. It says the gradient there, in a message with one block for every
model, zero in the others.

Models that start alike stay alike, and models that start apart may share two groups badly. So all tasks
begin with one model, and at rounds fixed in advance the model with most tasks is split in two along a random
public direction. Which that is, noisy votes tell: a short one-hot vector at the end of every message.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cloister.algorithms.finetuning import where
from cloister.algorithms.meta import Meta, as_on, check_count
from cloister.algorithms.server import Server, ServerAverage, require_server
from cloister.core.arrays import Array, Public, States, namespace
from cloister.core.channel import Channel, Round, equal_rounds
from cloister.core.errors import PlanError
from cloister.core.lifts import Plain
from cloister.core.spelling import counted
from cloister.core.tasks import local_key, local_uniforms
from cloister.plan.algorithm import Budget

if TYPE_CHECKING:
    from cloister.core.tasks import Block
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release


#: What a task ends with, from its solution and the public model it started from.
End = Callable[[Array, Array], Array]
#: A model is given up for a half of the fullest if it has less than this share of the mean votes,
DESERTED = 0.3
#: or if it is closer to another than this share of the models' mean distance.
CLOSE = 0.5


@dataclass(frozen=True)
class ClusteredMetaSGD(Meta):
    r"""Meta-learning with q meta-models, of which each task uses the best for itself.

    .. math:: \min_{h_1..h_q}\ \sum_k \min_j L_k(h_j)

    Parameters
    ----------
    learner, solver, lam, clip, rounds, radius, tail, finetune, server
        As for `MetaSGD`. A model moves by its own tasks' share of the mean gradient, so that with q of them a
        larger `lr` makes sense.
    models : int
        How many, q. With 1 it is `MetaSGD`.
    splitting : float
        Share of the rounds until the last split. There are ``2 (q - 1)`` splits, at equal distances: the
        first q - 1 make the models, the others only move one that can be spared.
    apart : float
        How far the halves of a split are pushed from each other, in units of clip / lam.
    vote : float
        Length of a vote, in clips. Gradient and vote are clipped together: a vote costs no privacy.

    Privacy
    -------
    A message is one block of q and a vote, clipped together: sensitivity `clip` (zero-out) or twice that
    (replace; the same model and opposite gradients attain it), whatever q. Which model a task chose shows
    nowhere but in that: all blocks get noise, all are divided by the same public number, and where the models
    start and are split follows from the board.

    References
    ----------
    Zhou and Bassily, "Task-level differentially private meta learning", appendix C (q = 2). Its published
    code moves the last model whichever a task chose, which drives the others away; here each moves by its
    own tasks.

    Examples
    --------
    >>> from cloister import Plan, Tasks, run
    >>> from cloister.learners import Convex, ExactSolver, LeastSquares
    >>> from cloister.mechanisms import NoNoise
    >>> tasks = Tasks.from_list([[[1.0]]] * 4, [[1.0], [1.2], [7.0], [7.2]])
    >>> algorithm = ClusteredMetaSGD(Convex(LeastSquares(1)), ExactSolver(), clip=9.0, rounds=60, models=2)
    >>> done = run(Plan(algorithm, NoNoise(), n_tasks=4), tasks)
    >>> sorted(done.board["average"].round(2).tolist())
    [1.1, 7.1]
    """

    server: Server = field(default_factory=ServerAverage)
    models: int = 2
    splitting: float = 0.5
    apart: float = 0.1
    vote: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_server(self.server)
        check_count("models", self.models)
        if not (0 < self.splitting <= 1 and self.apart > 0 and 0 < self.vote < 1):
            raise PlanError(
                "splitting must be in (0, 1], apart > 0 and vote in (0, 1). "
                f"Got {self.splitting}, {self.apart}, {self.vote}."
            )
        if len(self._splits) < 2 * (self.models - 1):
            raise PlanError(
                f"{self.models} models need at least {2 * self.models - 1} rounds until the last split. "
                f"Got {counted(self.rounds, 'round')} with splitting={self.splitting}. Write rounds="
                f"{math.ceil((2 * self.models - 1) / self.splitting)}, or more."
            )

    @cached_property
    def _splits(self) -> tuple[int, ...]:
        count = 2 * (self.models - 1)
        times = (int(self.splitting * self.rounds * (i + 1) / (count + 1)) for i in range(count))
        return tuple(sorted({time for time in times if time > 0}))

    def _in_use(self, rounds: int) -> int:
        """Return how many models are in use after so many rounds."""
        return min(self.models, 1 + sum(split <= rounds for split in self._splits))

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        return equal_rounds(self.rounds, (self._channel,))

    @property
    def _width(self) -> int:
        return self.models * self.learner.shared_size

    @property
    def _channel(self) -> Channel:
        return Channel(self._width + (self.models if self.models > 1 else 0), self.clip, Plain())

    def start(self) -> Public:
        start = np.tile(self.shared_start, self.models)
        votes = np.zeros(self.models, dtype=start.dtype)
        return self.opened(start, self.server.start(self._width)) | {"votes": votes}

    def channel(self, board: BoardView) -> Channel:
        return self._channel

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        """Solve from every model; say the gradient at the best, in its block, and vote for it."""
        end = lambda solved, model: solved  # noqa: E731
        best, solved, offset = self._best(board["mean"], states, block, board, end)
        gradient = -self.lam * offset
        xp, chosen = namespace(gradient), [(best == j)[:, None] for j in range(self.models)]
        parts = [gradient * one for one in chosen]
        if self.models > 1:
            parts += [xp.asarray(self.vote * self.clip * one, dtype=gradient.dtype) for one in chosen]
        return xp.concatenate(parts, 1), self.learner.keep(solved)

    def update(self, release: Release, board: BoardView) -> Public:
        noisy = self.clip * release.value / release.denominator
        gradients = noisy[: self._width].copy()
        idle = self._in_use(board.rounds) * self.learner.shared_size
        gradients[idle:] = 0.0  # noise alone, of models not in use
        moved = self.server.step(board, -gradients)
        votes = board["votes"] + (noisy[self._width :] if self.models > 1 else 0.0)
        if board.rounds + 1 in self._splits:
            moved, votes = self._split(moved, votes, board.rounds + 1), np.zeros_like(votes)
        moved["mean"] = self.projected(moved["mean"])
        return as_on(board, moved | self.averaged(board, moved["mean"]) | {"votes": votes})

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        end = lambda solved, model: self.tune(solved, model, states, block, board)  # noqa: E731
        best, coef, _ = self._best(self.released(board), states, block, board, end)
        return {"coef": coef, "cluster": best}

    def model_without_data(self, board: BoardView) -> States:
        """Return the model of a task without data: the released one that most tasks voted for."""
        most = int(np.argmax(board["votes"]))
        released = self.released(board).reshape(self.models, -1)
        return {"coef": self.learner.model_without_data(released[most]), "cluster": np.array([most])}

    def _best(
        self, models: Array, states: States, block: Block, board: BoardView, end: End
    ) -> tuple[Array, Array, Array]:
        """Solve from every model in use; return each task's best, what it ends with there, its offset."""
        size = self.learner.shared_size
        for j in range(self._in_use(board.rounds)):
            model = models[j * size : (j + 1) * size]
            solved, offset = self.solve(model, states, block, board)
            loss = self.learner.losses(solved, block) + self.lam / 2 * (offset * offset).sum(1)
            found = end(solved, model)
            if j == 0:
                best, least, ended, away = (loss != loss) * 0, loss, found, offset
            better = (loss < least) | (least != least)  # a loss that is not a number loses
            best = best * ~better + j * better
            least, ended = where(better, loss, least), where(better[:, None], found, ended)
            away = where(better[:, None], offset, away)
        return best, ended, away

    def _split(self, moved: Public, votes: Array, time: int) -> Public:
        """Split the fullest model in two, if another is not in use yet or can be spared."""
        used, before = self._in_use(time), self._in_use(time - 1)
        counts = np.round(votes / (self.vote * self.clip), 6)  # a tie is a tie, whatever the rounding
        full = int(np.argmax(counts[:before]))
        models = moved["mean"].reshape(self.models, -1)
        spare = before if used > before else _spare(models.astype(np.float64), counts, full)
        if spare is None:
            return moved
        public = {name: np.array(array) for name, array in moved.items()}
        for array in public.values():
            if array.shape == (self._width,):  # the models, and what the server keeps of them
                rows = array.reshape(self.models, -1)
                rows[spare] = rows[full]
        push = self.apart * self.clip / self.lam * _direction(time, self.learner.shared_size)
        halves = public["mean"].reshape(self.models, -1)
        halves[full] += push
        halves[spare] -= push
        return public


def _spare(models: NDArray[np.float64], votes: Array, full: int) -> int | None:
    """Return a model that hardly any task uses, or one of two that are close; None if there is none."""
    empty = int(np.argmin(votes))
    if votes[empty] < DESERTED * votes.mean():
        return empty
    apart = np.linalg.norm(models[:, None] - models, axis=2)
    pairs = [(i, j) for i in range(len(models)) for j in range(i) if full not in (i, j)]
    if not pairs:
        return None
    pair = min(pairs, key=lambda pair: apart[pair])
    typical = apart.sum() / (len(models) * (len(models) - 1))
    return min(pair, key=lambda i: votes[i]) if apart[pair] < CLOSE * typical else None


def _direction(time: int, size: int) -> NDArray[np.float64]:
    """Return a public direction, of length 1, that depends on the round alone."""
    drawn = local_uniforms(np.array([local_key(0, "split")]), time, size)[0] - 0.5
    return np.asarray(drawn / np.linalg.norm(drawn))
