r"""Federated learning of networks by many tasks at once: private personalised learning and its baselines.

All share one shape. The board holds a public model :math:`\tilde w`; a task trains at home and says, clipped,
how far it got; the curator moves the public model by the noisy mean. They differ in where a task starts, what
holds it back, and what it ends with:

============== ==================== ============================== =========================
algorithm      starts from          held near the public model     ends with
============== ==================== ============================== =========================
`Personalized` its own last model   while it trains                its own model
`FedAvg`       the public model     not                            the public model, tuned
`FedProx`      the public model     while it trains                the public model, tuned
`Ditto`        the public model     only its own second model      its own second model
`FedRep`       the public body      not                            the public body, its own head
============== ==================== ============================== =========================

Where a learner has personal parameters, a task starts from the public model with its own beside it, says how
far the shared ones got, and keeps the others. A penalty holds the shared ones alone. `FedRep` trains personal
heads and the shared body in turn.

References
----------
Papers "DPMTL" (Algorithm 1) and "PMTL" (Hu, Wu, Smith, arXiv:2108.12978, Algorithm 1, with a fixed public
denominator). McMahan et al., arXiv:1602.05629 (FedAvg); Li et al., arXiv:1812.06127 (FedProx),
arXiv:2012.04221 (Ditto).
L. Collins, H. Hassani, A. Mokhtari and S. Shakkottai, "Exploiting shared representations for personalized
federated learning", arXiv:2102.07078, Algorithm 1 (FedRep).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from cloister.algorithms.bases import ClientAlgorithm, WithoutRounds
from cloister.algorithms.finetuning import CrossValidatedTuning, FineTuning, variants_of
from cloister.algorithms.server import Server, ServerAverage, require_server
from cloister.core.arrays import Array, Public, States, is_real, is_whole
from cloister.core.channel import Channel, Round, equal_rounds
from cloister.core.errors import PlanError
from cloister.core.lifts import Plain
from cloister.core.spec import Sender
from cloister.learners.descent import StepSolver, require_rates
from cloister.learners.learner import ClientLearner, Part, require_learner
from cloister.learners.penalties import Quadratic
from cloister.plan.algorithm import Budget

if TYPE_CHECKING:
    from cloister.core.tasks import Block
    from cloister.store.billboard import BoardView
    from cloister.store.records import Release


@dataclass(frozen=True)
class _Federated(ClientAlgorithm):
    """What all share: the message's channel, the public model, and training at home at the end."""

    learner: ClientLearner
    solver: StepSolver
    clip: float = 1.0
    rounds: int = 100
    server: Server = field(default_factory=ServerAverage)
    finetune: FineTuning | CrossValidatedTuning | None = None

    def __post_init__(self) -> None:
        require_learner(self.learner)
        require_server(self.server)
        if not (is_whole(self.rounds) and self.rounds >= 1):
            raise PlanError(
                f"rounds must be a whole number, at least 1. Got {self.rounds!r}. Use LocalOnly() to share "
                "nothing."
            )
        self.learner.check_solver(self.solver, self._penalty)
        Channel(self.learner.shared_size, self.clip)  # refuses what is no clip, before a plan is made of it
        self._require_rates()
        for tuning in variants_of(self.finetune, self.rounds):
            self.learner.check_solver(tuning.solver, tuning.penalty)

    def _require_rates(self) -> None:
        """Refuse rounds in which nobody could say more than nothing."""
        require_rates(self.solver, self.rounds)

    @property
    def _penalty(self) -> Quadratic | None:
        """What holds a task near the public model while it trains."""
        return None

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        return equal_rounds(self.rounds, (self._channel,))

    @property
    def _channel(self) -> Channel:
        return Channel(self.learner.shared_size, self.clip, Plain())

    def start(self) -> Public:
        mean = self.learner.shared(self.learner.start())
        return {"mean": mean, **self.server.start(self.learner.shared_size)}

    def channel(self, board: BoardView) -> Channel:
        return self._channel

    def init(self, block: Block, board: BoardView) -> States:
        return self.learner.first(board["mean"], block)

    def update(self, release: Release, board: BoardView) -> Public:
        return narrow(self.server.step(board, self.clip / release.denominator * release.value))

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        return {"coef": self._tune(self.learner.spread(board["mean"], block, states), block, board)}

    def model_without_data(self, board: BoardView) -> States:
        return {"coef": self.learner.model_without_data(board["mean"])}

    def _update(
        self, states: States, block: Block, board: BoardView, lam: float = 0.0
    ) -> tuple[Array, States]:
        """Train from the public model; say how far what is shared got, keep what is personal."""
        start = self.learner.spread(board["mean"], block, states)
        ended = self._train(start, block, board, lam)
        return self.learner.shared(ended - start), self.learner.keep(ended)

    def _train(self, start: Array, block: Block, board: BoardView, lam: float = 0.0) -> Array:
        """Return where a round's local work ends, held near the public model by a penalty of strength lam."""
        return self.learner.descend(start, block, self.solver, board.rounds, board["mean"], quadratic(lam))

    def _tune(self, weights: Array, block: Block, board: BoardView) -> Array:
        if self.finetune is None:
            return weights
        return self.finetune.tune(self.learner, weights, block, board.rounds, board["mean"])


@dataclass(frozen=True)
class _Regularized(_Federated):
    """What those share whose training is held near the public model."""

    lam: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_real(self.lam) and 0 <= self.lam < math.inf):
            raise PlanError(f"lam must be a number >= 0 and finite. Got {self.lam!r}.")

    @property
    def _penalty(self) -> Quadratic | None:
        return quadratic(self.lam)


@dataclass(frozen=True)
class FedAvg(_Federated):
    """Federated averaging with clipped, noisy updates; one public model for all, tuned at home if asked to.

    Parameters
    ----------
    learner : Module
        Network and loss.
    solver : Descent, Nesterov, Adam or AdamW
        A round's local training.
    clip : float
        Largest length of an update; public.
    rounds : int
        Releases.
    server : ServerAverage, ServerMomentum, ServerAdam or ServerAdamW
        What the public model does with a noisy update.
    finetune : FineTuning or CrossValidatedTuning, optional
        Training at home after the last release.

    Privacy
    -------
    A message is one update, clipped: sensitivity `clip` (zero-out) or twice that (replace) of the sum. Every
    task counts the same, whatever its number of rows, and the denominator is public.
    """

    @property
    def senders(self) -> frozenset[Sender]:
        """Records too, where nothing is personal: with a step each this is gradient descent by record."""
        alone = {Sender.RECORD} if self.learner.shared_size == self.learner.size else set()
        return frozenset({Sender.TASK, *alone})

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        return self._update(states, block, board)


@dataclass(frozen=True)
class FedProx(_Regularized):
    r"""Federated averaging with local training held near the public model by a quadratic.

    Parameters
    ----------
    learner, solver, clip, rounds, server, finetune
        As for `FedAvg`.
    lam : float
        Strength of the penalty, as in :math:`\frac\lambda2 |w - \tilde w|^2`.

    Privacy
    -------
    As for `FedAvg`.
    """

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        return self._update(states, block, board, self.lam)


@dataclass(frozen=True)
class Ditto(_Regularized):
    """Federated averaging, and beside it a model of each task's own, held near the public one.

    Parameters
    ----------
    learner, solver, clip, rounds, server, finetune
        As for `FedAvg`; `finetune` goes on with the task's own model.
    lam : float
        Strength of the penalty on the distance between a task's own model and the public one.

    Privacy
    -------
    As for `FedAvg`. The second model says nothing, so all its training is free.
    """

    def init(self, block: Block, board: BoardView) -> States:
        start = self.learner.spread(board["mean"], block)
        return {"weights": start} | self.learner.keep(start)

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        messages, kept = self._update(states, block, board)
        return messages, {"weights": self._train(states["weights"], block, board, self.lam)} | kept

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        return {"coef": self._tune(states["weights"], block, board)}


@dataclass(frozen=True)
class Offset:
    """Say how far the model is from the public one: noise does not add up over rounds."""

    keeps: ClassVar[tuple[str, ...]] = ()  # what the board remembers of the start

    def compute(self, new: Array, old: Array, board: BoardView) -> Array:
        return new - board["mean"]

    def step(self, noisy: Array, board: BoardView) -> Array:
        return noisy


@dataclass(frozen=True)
class Increment:
    """Say how far the model moved in this round.

    The public model is the start plus the mean over *all* tasks of all they have said, so a noisy sum is
    divided by the number of tasks and not by the number that take part in a round.

    Parameters
    ----------
    share : float
        The probability that a task takes part in a round, as in the plan's sampling: 1 for `Everyone`.
    """

    share: float
    keeps: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise PlanError(f"share must be the sampling's probability, in (0, 1]. Got {self.share}.")

    def compute(self, new: Array, old: Array, board: BoardView) -> Array:
        return new - old

    def step(self, noisy: Array, board: BoardView) -> Array:
        """Divide by all tasks."""
        return self.share * noisy


@dataclass(frozen=True)
class Position:
    """Say where the model is, measured from the public start; the public model forgets its past."""

    keeps: ClassVar[tuple[str, ...]] = ("start",)

    def compute(self, new: Array, old: Array, board: BoardView) -> Array:
        return new - board["start"]

    def step(self, noisy: Array, board: BoardView) -> Array:
        """Return the way from the last public model to the new one."""
        return board["start"] + noisy - board["mean"]


@dataclass(frozen=True)
class Personalized(_Regularized):
    r"""Mean-regularised personal models: each task trains its own, held near the public mean of all.

    .. math::
        \min_{w_1..w_m}\ \sum_k f_k(w_k) + \tfrac{\lambda}{2}\,|w_k - \tilde w|^2,
        \qquad \tilde w = \frac1m \sum_k w_k

    Parameters
    ----------
    learner, solver, clip, rounds, server, finetune
        As for `FedAvg`.
    lam : float
        Strength of the penalty on the distance from the mean. At 0 nothing is taken from the others.
    message : Offset, Increment or Position
        What a task tells: its distance from the mean (the default; independent noise does not add up), how
        far it moved, or where its model is, which is what the DPMTL paper releases.

    Privacy
    -------
    As for `FedAvg`. A task's model is never clipped, only what it says is, and it stays at home. The printed
    form of the PMTL paper, increments over the number of *sampled* tasks, has the wrong limit and diverges
    when ``lam * (m / q - 1) >= 1``; no form here does.

    Examples
    --------
    >>> from torch import nn
    >>> from cloister import Plan
    >>> from cloister.learners import Descent, Module
    >>> algorithm = Personalized(Module(nn.Linear(4, 3)), Descent(lr=0.1, batch=10), clip=0.5, rounds=20)
    >>> Plan(algorithm, n_tasks=500).calibrate(epsilon=2.0).guarantee.epsilon <= 2.0
    True
    """

    message: Offset | Increment | Position = field(default_factory=Offset)

    def _require_rates(self) -> None:
        if isinstance(self.message, Increment):  # others say where a task is, whether it moves or not
            super()._require_rates()

    def start(self) -> Public:
        board = super().start()
        return board | {name: np.array(board["mean"]) for name in self.message.keeps}

    def init(self, block: Block, board: BoardView) -> States:
        return {"weights": self.learner.spread(board["mean"], block)}

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        old = states["weights"]
        new = self._train(old, block, board, self.lam)
        told = self.message.compute(self.learner.shared(new), self.learner.shared(old), board)
        return told, {"weights": new}

    def update(self, release: Release, board: BoardView) -> Public:
        noisy = self.clip * release.value / release.denominator
        moved = narrow(self.server.step(board, self.message.step(noisy, board)))
        return moved | {name: board[name] for name in self.message.keeps}

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        return {"coef": self._tune(states["weights"], block, board)}


@dataclass(frozen=True)
class LocalOnly(WithoutRounds, ClientAlgorithm):
    """Every task trains alone from the public start; nothing is said and nothing is spent."""

    learner: ClientLearner
    solver: StepSolver

    def __post_init__(self) -> None:
        require_learner(self.learner)
        self.learner.check_solver(self.solver, None)

    def start(self) -> Public:
        return {"mean": self.learner.shared(self.learner.start())}

    def init(self, block: Block, board: BoardView) -> States:
        return {"weights": self.learner.spread(board["mean"], block)}

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        own = self.learner.descend(states["weights"], block, self.solver, 0, board["mean"], None)
        return {"coef": own}

    def model_without_data(self, board: BoardView) -> States:
        return {"coef": self.learner.model_without_data(board["mean"])}


def narrow(public: Public) -> Public:
    """Return public arrays as networks hold them, in 32 bits."""
    return {name: np.asarray(array, dtype=np.float32) for name, array in public.items()}


def quadratic(lam: float) -> Quadratic | None:
    """Return the penalty of strength lam, if there is one."""
    return None if lam == 0 else Quadratic(lam)


@dataclass(frozen=True)
class FedRep(FedAvg):
    """Train the personal parameters with the shared ones fixed, then the shared ones with these; tell those.

    A task ends with the public model's shared parameters and its own personal ones, trained on these once
    more. `FedAvg` with the same learner trains both at once, which is known as FedPer.

    Parameters
    ----------
    learner : Module
        With personal parameters: ``Module(net, personal=("head.*",))``.
    solver : Descent, Nesterov, Adam or AdamW
        A round's training of what is shared.
    clip, rounds, server, finetune
        As for `FedAvg`; `finetune` goes on with all parameters, after the last training of personal ones.
    head : Descent, Nesterov, Adam or AdamW, optional
        A round's training of what is personal, before that; as `solver` by default.

    Privacy
    -------
    As for `FedAvg`: a message is the update of the shared parameters, clipped. What a task has learned for
    itself shows in that update and nowhere else.

    Examples
    --------
    >>> from torch import nn
    >>> from cloister.learners import Descent, Module
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> learner = Module(net, personal=("2.*",))
    >>> fedrep = FedRep(learner, Descent(lr=0.1, batch=10), head=Descent(lr=0.1, batch=10, epochs=5))
    >>> fedrep.channel(None).dim, fedrep.learner.size
    (40, 67)
    """

    head: StepSolver | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.learner.check_solver(self._head, None)
        variants_of(FineTuning(self._head), self.rounds)
        if self.learner.shared_size == self.learner.size:
            raise PlanError(
                "FedRep trains personal parameters and shared ones in turn, and this learner has no personal "
                'ones. Name them, Module(net, personal=("head.*",)), or use FedAvg.'
            )

    @property
    def _head(self) -> StepSolver:
        return self.solver if self.head is None else self.head

    def send(self, states: States, block: Block, board: BoardView) -> tuple[Array, States]:
        start = self.learner.spread(board["mean"], block, states)
        own = self._train_head(start, block, board)
        ended = self.learner.descend(own, block, self.solver, board.rounds, part=Part.SHARED)
        return self.learner.shared(ended - start), self.learner.keep(own)

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        start = self.learner.spread(board["mean"], block, states)
        return {"coef": self._tune(self._train_head(start, block, board), block, board)}

    def _train_head(self, start: Array, block: Block, board: BoardView) -> Array:
        return self.learner.descend(start, block, self._head, board.rounds, part=Part.PERSONAL)

    @property
    def local_batch(self) -> int | None:
        both = (self.solver.batch, self._head.batch)
        return None if None in both else max(batch for batch in both if batch is not None)
