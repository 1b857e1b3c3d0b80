"""A public body without descent: filters are centres of patches, features the directions that tell most.

For processors: it takes a minute of one core. A convolution with the centres of whitened patches (k-means),
what of it is above a threshold, averaged over a grid of five by five places, and then the 128 directions of
linear discriminant analysis in which characters differ most against how an image of them may be bent.

References
----------
.. [1] A. Coates, A. Ng, H. Lee, "An analysis of single-layer networks in unsupervised feature learning",
   AISTATS 2011.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import scipy.linalg
import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: Pixels of a filter's side, filters, and what a filter's answer must exceed.
SIDE, FILTERS, THRESHOLD = 7, 64, 0.3
#: Images and patches that filters come from, and passes over these.
IMAGES, PATCHES, PASSES = 4000, 60_000, 12
#: Contrast that a patch must have, what is added to its norm, and to the variances of its components.
LEAST_VARIANCE, CONTRAST, WHITENING = 0.01, 0.5, 0.01
#: Added to the variances within a character, as a share of their mean.
SHRINKAGE = 0.05
BATCH = 1024

#: Draws bent images and their characters, so many in all, in batches.
Draw = Callable[[int, int], Iterator[tuple[Tensor, Tensor]]]


def filter_body(filters: int, features: int) -> nn.Sequential:
    """Return the network without weights: images of 28 by 28 pixels, ink 1 on 0, become features."""
    return nn.Sequential(
        nn.Conv2d(1, filters, SIDE, padding=SIDE // 2), nn.ReLU(), nn.AvgPool2d(6, stride=5, padding=1),
        nn.Flatten(), nn.Linear(25 * filters, features),
    )  # fmt: skip


@torch.no_grad()
def solve(draw: Draw, images: int, classes: int, features: int, seed: int = 0) -> nn.Sequential:
    """Find filters from the first images that are drawn, and directions from so many more."""
    net = filter_body(FILTERS, features)
    convolution, directions = net[0], net[-1]
    pictures = torch.cat([picture for picture, _ in draw(IMAGES, BATCH)])
    convolution.weight.copy_(_filters(pictures, FILTERS, seed).reshape(FILTERS, 1, SIDE, SIDE))
    convolution.bias.fill_(-THRESHOLD)
    weight, bias = _discriminants(_answers(net[:-1], draw(images, BATCH)), classes, features)
    directions.weight.copy_(weight)
    directions.bias.copy_(bias)
    return net.eval()


def _answers(front: nn.Sequential, batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return what filters say of every image, and its class."""
    said, classes = [], []
    for pictures, target in batches:
        with torch.autocast("cpu", torch.bfloat16):
            said.append(front(pictures).float())
        classes.append(target)
    return torch.cat(said), torch.cat(classes)


def _filters(pictures: Tensor, count: int, seed: int) -> Tensor:
    """Return centres of whitened patches, found by k-means on the sphere, as filters of norm 1 and mean 0."""
    rng = torch.Generator().manual_seed(seed)
    patches = F.unfold(pictures, SIDE).transpose(1, 2).reshape(-1, SIDE * SIDE)
    patches = patches[patches.var(1) > LEAST_VARIANCE]
    patches = patches[torch.randperm(len(patches), generator=rng)[:PATCHES]]
    patches = patches - patches.mean(1, keepdim=True)
    patches = patches / (patches.norm(dim=1, keepdim=True) + CONTRAST)
    values, axes = torch.linalg.eigh(patches.T @ patches / len(patches))
    whiten = axes @ torch.diag((values + WHITENING * values.max()).rsqrt()) @ axes.T
    points = F.normalize(patches @ whiten, dim=1)
    centres = points[torch.randperm(len(points), generator=rng)[:count]]
    for _ in range(PASSES):
        near, nearest = (points @ centres.T).max(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points * near[:, None])
        centres = F.normalize(torch.where(sums.norm(dim=1, keepdim=True) > 0, sums, centres), dim=1)
    filters = centres @ whiten
    return F.normalize(filters - filters.mean(1, keepdim=True), dim=1)


def _discriminants(answers: tuple[Tensor, Tensor], classes: int, features: int) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the directions in which classes differ most, each as long as it is sure."""
    said, target = answers
    counts = torch.bincount(target, minlength=classes).float()
    centre = said.mean(0)
    means = torch.zeros(classes, said.shape[1]).index_add_(0, target, said) / counts.clamp(min=1)[:, None]
    inside, present = said - means[target], int((counts > 0).sum())
    within = (inside.T @ inside).double().numpy() / (len(said) - present)
    apart = (means - centre) * counts.sqrt()[:, None]
    between = (apart.T @ apart).double().numpy() / len(said) - within * present / len(said)
    size = len(within)
    within += SHRINKAGE * np.trace(within) / size * np.eye(size)
    ratio, axes = scipy.linalg.eigh(between, within, subset_by_index=[size - features, size - 1])
    ratio = np.maximum(ratio, 0.0)
    weight = torch.as_tensor((axes * np.sqrt(ratio / (1 + ratio))).T[::-1].copy(), dtype=torch.float32)
    return weight, -(weight @ centre)
