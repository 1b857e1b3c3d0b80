"""Rows through a public network: short vectors that any estimator, and any learner, can stand on."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from torch import nn

from cloister.arrays import Array
from cloister.errors import InputError
from cloister.learners.network.checks import check_network
from cloister.learners.network.clients import guard_layers
from cloister.learners.network.descriptions import describe_layers, describe_settings
from cloister.learners.network.trials import check_behaviour, outputs_of
from cloister.tasks import Tasks

__all__ = ["PublicFeatures"]

#: Bounds of a feature, in deviations that the numbers of a random direction have.
REACH = 3.0
#: Rows of a task that a body takes at once.
AT_ONCE = 1 << 10


@dataclass(eq=False)
class PublicFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""A public, frozen network that turns images, texts or signals into rows of norm at most 1.

    Estimators on top of it share models of its outputs, as they would of any other columns:
    ``model.fit(body.columns(images), labels, tasks=owner)``. It is a scikit-learn transformer as well, with
    nothing to fit.

    Parameters
    ----------
    net : nn.Module
        Trained on public data, never on tasks' own. A copy is kept, in evaluation mode: batch normalisation
        and dropout are fine, if they are so there. Its first axis is examples.
    shape : tuple of int
        Of one row, without the axis of examples: ``(1, 28, 28)``.
    dtype : dtype, default=float
        ``int`` for codes, such as a text's tokens.
    name : str, default="feature"
        What the columns are called by.
    device : str, default="cpu"
        Where the network runs.

    Attributes
    ----------
    size : int
        Number of features.
    fingerprint : str
        Of the layers, all their numbers and what else they hold. It is part of the columns' names, so that a
        codebook, and a run that is saved with one, are for this body and refuse the columns of another.

    Privacy
    -------
    A row's features depend on that row and on public constants alone, so a guarantee for any rows is one for
    these. `transform` and `columns` compute them one by one, so that this holds to the last bit; `tasks`
    computes each task's own together. They are divided by their norm, whatever the network puts out, and are
    zeros where it puts out nothing finite: :math:`\|x\|_2 \le 1` by construction.

    Examples
    --------
    >>> import cloister as cl
    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8))
    >>> body = PublicFeatures(net, shape=(1, 8, 8), name="scan")
    >>> rng = np.random.default_rng(0)
    >>> scans, ward = rng.random((400, 1, 8, 8)), rng.integers(0, 40, 400)
    >>> age, ill = rng.uniform(20, 90, 400), rng.random(400) < 0.5
    >>> bounds = {"age": (18, 110), "target": [False, True], **body.bounds}
    >>> model = cl.SharedPriorClassifier(epsilon=2.0, bounds=bounds, random_state=0)
    >>> model = model.fit({"age": age, **body.columns(scans)}, ill, tasks=ward)
    >>> model.coef_.shape
    (40, 9)
    """

    net: nn.Module
    shape: tuple[int, ...]
    dtype: DTypeLike = float
    name: str = "feature"
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_network(self.net)
        if not isinstance(self.shape, tuple | list) or not all(
            isinstance(n, int) and n > 0 for n in self.shape
        ):
            raise InputError(
                f"shape must be a tuple of the lengths of a row's axes, such as (1, 28, 28) or (64,). Got "
                f"{self.shape!r}."
            )
        frozen = copy.deepcopy(self.net).cpu().eval().requires_grad_(False)
        kind = torch.Size(self.shape), self._kind
        check_behaviour(frozen, *kind)
        self.size = outputs_of(frozen, *kind).flatten(1).shape[1]
        self.fingerprint = _fingerprint(frozen, f"{[*self.shape]} {self._kind}")
        self._body = guard_layers(frozen).eval().to(self.device)

    @property
    def _kind(self) -> torch.dtype:
        return torch.int64 if np.dtype(self.dtype).kind in "biu" else torch.float32

    @property
    def names(self) -> list[str]:
        """Names of the columns: the body's name and fingerprint, and a number."""
        return [f"{self.name}_{self.fingerprint[:8]}_{i}" for i in range(self.size)]

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """Public bounds of the columns, for a codebook: what a number of a unit vector seldom leaves."""
        reach = min(1.0, REACH / math.sqrt(self.size))
        return dict.fromkeys(self.names, (-reach, reach))

    def transform(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return features, a row of norm at most 1 for each row of X."""
        return self._transform(X, 1)

    def _transform(self, X: ArrayLike, together: int) -> NDArray[np.float64]:
        rows = np.asarray(X)
        wanted = "whole numbers" if self._kind == torch.int64 else "numbers"
        kinds = "biu" if self._kind == torch.int64 else "biuf"
        if rows.ndim == 0 or rows.shape[1:] != tuple(self.shape) or rows.dtype.kind not in kinds:
            raise InputError(
                f"X must have {wanted} of shape {('rows', *self.shape)}. Got {rows.dtype} of shape "
                f"{rows.shape}. Reshape it, or give the body's own shape= and dtype=."
            )
        found = np.empty((len(rows), self.size))
        for at in range(0, len(rows), together):
            found[at : at + together] = self._features(rows[at : at + together])
        return found

    def columns(self, X: ArrayLike) -> dict[str, NDArray[np.float64]]:
        """Return features as named columns, to be put beside others: ``{"age": age, **body.columns(X)}``."""
        return dict(zip(self.names, self.transform(X).T, strict=True))

    def tasks(self, tasks: Tasks) -> Tasks:
        """Return tasks whose rows are features, for learners such as `Module`; each is computed by itself."""
        parts = [self._transform(tasks.X[part], AT_ONCE) for part in _each(tasks)]
        X = np.concatenate(parts) if parts else np.empty((0, self.size))
        return replace(tasks, X=X)

    def fit(self, X: object = None, y: object = None) -> Self:
        """Do nothing: a public body is not fitted to tasks' rows."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Return the columns' names, as scikit-learn asks for them."""
        return np.array(self.names, dtype=object)

    def _features(self, rows: Array) -> NDArray[np.float64]:
        inputs = torch.as_tensor(rows.copy(), dtype=self._kind, device=self.device)
        with torch.no_grad():
            found = self._body(inputs).flatten(1).double().cpu().numpy()
        return _directions(found)


def _directions(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide each row by its norm; rows that are zero, or not finite, become zeros."""
    rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)
    largest = np.abs(rows).max(axis=1, initial=0.0, keepdims=True)
    rows = rows / np.where(largest > 0, largest, 1.0)  # squares neither overflow nor vanish
    norm = np.sqrt((rows**2).sum(axis=1, keepdims=True))
    return np.asarray(rows / np.where(norm > 0, norm * (1 + 1e-12), 1.0))  # rounding too leaves them within


def _each(tasks: Tasks) -> Iterator[slice]:
    for start, stop in zip(tasks.offsets[:-1], tasks.offsets[1:], strict=True):
        yield slice(int(start), int(stop))


def _fingerprint(net: nn.Module, rows: str) -> str:
    layers = f"{describe_layers(net)}\n{describe_settings(net)}"
    digest = hashlib.sha256(f"{layers}\n{rows}\n".encode())
    for name, number in {**net.state_dict(), **dict(net.named_buffers())}.items():
        digest.update(f"{name} {number.dtype} {[*number.shape]}\n".encode())
        digest.update(number.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
