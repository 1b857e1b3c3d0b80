"""What the curator does with a noisy mean of updates: public arithmetic on public numbers, and free."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from cloister.core.arrays import Floats, Public
from cloister.core.errors import PlanError

if TYPE_CHECKING:
    from cloister.store.billboard import BoardView


@runtime_checkable
class Server(Protocol):
    """A rule that turns the mean, its history on the board and a noisy update into the next mean."""

    def start(self, size: int) -> Public:
        """Return what the rule keeps on the board."""

    def step(self, board: BoardView, update: Floats) -> Public:
        """Return the next mean and what the rule keeps."""


@dataclass(frozen=True)
class ServerAverage:
    """Move the public model by the noisy update.

    Parameters
    ----------
    lr : float
        How much of the update to take.

    Examples
    --------
    >>> ServerAverage(0.5).step({"mean": np.zeros(2)}, np.array([2.0, 4.0]))["mean"].tolist()
    [1.0, 2.0]
    """

    lr: float = 1.0

    def __post_init__(self) -> None:
        _check_positive("lr", self.lr)

    def start(self, size: int) -> Public:
        return {}

    def step(self, board: BoardView, update: Floats) -> Public:
        mean = self.lr * update
        mean += board["mean"]
        return {"mean": mean}


@dataclass(frozen=True)
class ServerMomentum:
    """Move the public model by a running sum of noisy updates, each worth `beta` of the one after it.

    Parameters
    ----------
    lr : float
        Step size; an update moves the model by ``lr / (1 - beta)`` of itself in the end.
    beta : float
        What is left of the running sum after a round.
    """

    lr: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        _check_positive("lr", self.lr)
        _check_share("beta", self.beta)

    def start(self, size: int) -> Public:
        return {"velocity": np.zeros(size)}

    def step(self, board: BoardView, update: Floats) -> Public:
        velocity = self.beta * board["velocity"] + update
        return {"mean": board["mean"] + self.lr * velocity, "velocity": velocity}


@dataclass(frozen=True)
class _Adaptive:
    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    floor: float = 1e-3

    def __post_init__(self) -> None:
        _check_positive("lr", self.lr)
        _check_share("beta1", self.beta1)
        _check_share("beta2", self.beta2)
        _check_positive("floor", self.floor)

    def start(self, size: int) -> Public:
        return {"first": np.zeros(size), "second": np.zeros(size), "count": np.zeros(())}

    def step(self, board: BoardView, update: Floats) -> Public:
        count = board["count"] + 1
        first = self.beta1 * board["first"] + (1 - self.beta1) * update
        second = self.beta2 * board["second"] + (1 - self.beta2) * update**2
        size = np.sqrt(second / (1 - self.beta2**count)) + self.floor
        mean = board["mean"] + self.lr * first / (1 - self.beta1**count) / size
        return {"mean": mean, "first": first, "second": second, "count": count}


@dataclass(frozen=True)
class ServerAdam(_Adaptive):
    """Move the public model by running mean of noisy updates over the root of that of their squares.

    Noise alone makes the squares, where it is large: then every coordinate moves by about `lr` a round.

    Parameters
    ----------
    lr : float
        Step size.
    beta1, beta2 : float
        What is left of the running means, of updates and of squares, after a round.
    floor : float
        Added to the root.

    References
    ----------
    Reddi et al., *Adaptive federated optimization*, arXiv:2003.00295 (FedAdam; here with bias correction).
    """


@dataclass(frozen=True)
class ServerAdamW(_Adaptive):
    """`ServerAdam` with decoupled weight decay: what is noise alone is drawn back, round by round.

    Parameters
    ----------
    lr, beta1, beta2, floor
        As for `ServerAdam`.
    weight_decay : float
        A round also moves the public model by ``lr * weight_decay`` of the way to 0, or to the start.
    to_start : bool
        Whether to decay to the public start instead of 0: for a network that public data have trained.

    References
    ----------
    Loshchilov and Hutter, *Decoupled weight decay regularization*, arXiv:1711.05101, Algorithm 2.
    """

    weight_decay: float = 0.01
    to_start: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_decay(self.weight_decay, 1 / self.lr)

    def step(self, board: BoardView, update: Floats) -> Public:
        moved = super().step(board, update)
        away = board["mean"] - board.before(0)["mean"] if self.to_start else board["mean"]
        return moved | {"mean": moved["mean"] - self.lr * self.weight_decay * away}


def require_server(given: object) -> None:
    """Refuse what is no rule for noisy updates, such as another library's optimiser."""
    if isinstance(given, type) or not isinstance(given, Server):
        kind = given.__name__ if isinstance(given, type) else type(given).__name__
        raise PlanError(
            f"server must be a ServerAverage, ServerMomentum, ServerAdam or ServerAdamW. Got {kind}. Write "
            "ServerAdam(lr=0.01), or leave server= out to take noisy updates as they are."
        )


def _check_positive(name: str, number: object) -> None:
    if not (isinstance(number, Real) and 0 < float(number) < math.inf):
        raise PlanError(f"{name} must be a number > 0 and finite. Got {number!r}.")


def _check_share(name: str, number: object) -> None:
    if not (isinstance(number, Real) and 0 <= float(number) < 1):
        raise PlanError(f"{name} must be a number in [0, 1), the share that is kept. Got {number!r}.")


def _check_decay(number: object, most: float) -> None:
    if not (isinstance(number, Real) and 0 <= float(number) <= most):
        raise PlanError(
            f"weight_decay must be a number from 0 to 1 / lr = {most:g}: no round goes further than all the "
            f"way. Got {number!r}."
        )
