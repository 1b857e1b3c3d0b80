"""Rows through a public network: short vectors that any estimator, and any learner, can stand on.

Small images come packed, eight bytes in a whole number, and a network takes them apart.
"""

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
from torch import Tensor, nn

from cloister.core.arrays import Array
from cloister.core.errors import InputError
from cloister.core.tasks import Tasks
from cloister.networks.fingerprint import describe_layers, describe_settings
from cloister.networks.layers import guard_layers
from cloister.networks.module_checks import outputs_of
from cloister.networks.network_faults import TOGETHER, check_batches, check_network, faults_on_rows, refuse
from cloister.networks.network_inputs import RowKind

#: Bytes in a whole number.
WORD = 8
WHITE = 255.0


class Unpack(nn.Module):
    """Turn packed images (see `cloister.datasets.pack`) into pixels in [0, 1]; it has nothing to learn.

    Whole numbers take eight bytes each on a device. Packed, an image takes a byte a pixel there: a quarter of
    what 32-bit floats take. What is packed is still a task's own data and stays in its own rows.

    Parameters
    ----------
    shape : int
        Channels, height and width of one image.

    Examples
    --------
    >>> Unpack(1, 2, 4)(torch.tensor([[255 + (51 << 8)]])).tolist()
    [[[[1.0, 0.20000000298023224, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]]]
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, words: Tensor) -> Tensor:
        """Return pixels, (examples, channels, height, width)."""
        shifts = 8 * torch.arange(WORD, device=words.device)
        pixels = ((words[..., None] >> shifts) & 255).flatten(1)[:, : math.prod(self.shape)]
        return pixels.to(torch.float32).div(WHITE).reshape(-1, *self.shape)

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.shape))


def glyph_net(
    ways: int = 5,
    width: int = 32,
    shape: tuple[int, int, int] = (1, 28, 28),
    packed: bool = True,
    seed: int = 0,
) -> nn.Module:
    """Build a convolutional network for small images, with few parameters: noise grows with their number.

    Pixels are first folded two by two into channels. Then come convolutions of 3 by 3, each with GroupNorm
    and pooling, until the image is about one pixel large, and a linear layer that starts at zero. With the
    defaults it has 20,037 parameters.

    Parameters
    ----------
    ways : int
        Classes.
    width : int
        Features of each convolution, a multiple of 4.
    shape : tuple of int
        Channels, height and width of an image; the last two even.
    packed : bool
        Whether images come packed (see `cloister.datasets.pack`).
    seed : int
        Of the random start, which is public.

    Examples
    --------
    >>> net = glyph_net()
    >>> sum(parameter.numel() for parameter in net.parameters())
    20037
    """
    channels, high, wide = 4 * shape[0], shape[1] // 2, shape[2] // 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = [Unpack(*shape)] if packed else []
        layers.append(nn.PixelUnshuffle(2))
        while min(high, wide) >= 2:
            layers += [
                nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(), nn.MaxPool2d(2),
            ]  # fmt: skip
            channels, high, wide = width, high // 2, wide // 2
        head = nn.Linear(channels * high * wide, ways)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(*layers, nn.Flatten(), head)


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
        kind = RowKind(torch.Size(self.shape), self._kind)
        refuse(faults_on_rows(frozen, kind))
        self.size = outputs_of(frozen, kind).flatten(1).shape[1]
        self.fingerprint = _fingerprint(frozen, f"{[*self.shape]} {self._kind}")
        self._body = guard_layers(frozen).eval().to(self.device)
        check_batches(self._body, kind, TOGETHER)

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
