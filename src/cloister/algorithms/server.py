"""What the curator does with a noisy mean of updates: public arithmetic on public numbers, and free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from cloister.billboard import Billboard

__all__ = ["Server", "ServerAdam", "ServerAverage", "ServerMomentum"]

Floats = NDArray[np.float64]
Public = dict[str, NDArray[Any]]


class Server(Protocol):
    """A rule that turns the mean, its history on the board and a noisy update into the next mean."""

    def open(self, size: int) -> Public:
        """Return what the rule keeps on the board."""

    def step(self, board: Billboard, update: Floats) -> Public:
        """Return the next mean and what the rule keeps."""


@dataclass(frozen=True)
class ServerAverage:
    """Move by the update."""

    lr: float = 1.0

    def open(self, size: int) -> Public:
        """Keep nothing."""
        return {}

    def step(self, board: Billboard, update: Floats) -> Public:
        """Return mean + lr * update."""
        return {"mean": board["mean"] + self.lr * update}


@dataclass(frozen=True)
class ServerMomentum:
    """Move by a running sum of updates, each worth `beta` of the one after it."""

    lr: float = 1.0
    beta: float = 0.9

    def open(self, size: int) -> Public:
        """Keep the running sum."""
        return {"velocity": np.zeros(size)}

    def step(self, board: Billboard, update: Floats) -> Public:
        """Return mean + lr * velocity."""
        velocity = self.beta * board["velocity"] + update
        return {"mean": board["mean"] + self.lr * velocity, "velocity": velocity}


@dataclass(frozen=True)
class ServerAdam:
    """Move by the running mean of updates over the root of the running mean of their squares."""

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    floor: float = 1e-3

    def open(self, size: int) -> Public:
        """Keep both running means and the number of steps."""
        return {"first": np.zeros(size), "second": np.zeros(size), "count": np.zeros(())}

    def step(self, board: Billboard, update: Floats) -> Public:
        """Return the next mean, bias-corrected."""
        count = board["count"] + 1
        first = self.beta1 * board["first"] + (1 - self.beta1) * update
        second = self.beta2 * board["second"] + (1 - self.beta2) * update**2
        size = np.sqrt(second / (1 - self.beta2**count)) + self.floor
        mean = board["mean"] + self.lr * first / (1 - self.beta1**count) / size
        return {"mean": mean, "first": first, "second": second, "count": count}
