"""Bodies of the benchmarks: both ways of making one learn to tell bent shapes apart, and are read back."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

pytest.importorskip("rich")

from benchmarks import body, body_filters
from cloister.learners import PublicFeatures

SHAPES, EACH = 12, 10


def shapes():
    """Return images of a few shapes, bars of their own in each: twelve characters, ten images of each."""
    rng = np.random.default_rng(0)
    pixels = np.zeros((SHAPES, EACH, 1, 28, 28), dtype=np.float32)
    for shape in pixels:
        for _ in range(3):
            row, column = rng.integers(4, 18, 2)
            if rng.random() < 0.5:
                shape[..., row : row + 3, column : column + 9] = 1
            else:
                shape[..., row : row + 9, column : column + 3] = 1
    character = torch.arange(SHAPES).repeat_interleave(EACH)
    return body.Images(torch.as_tensor(pixels.reshape(-1, 1, 28, 28)), character)


def nearest_mean(net):
    """Return how often fresh images are nearest to the mean of their own class: 1 in 48 by chance."""
    features = PublicFeatures(net, (1, 28, 28))
    (seen, known), (fresh, target) = (next(body.draw(shapes(), 480, 480, seed)) for seed in (1, 2))
    directions = features.transform(seen)
    means = np.stack([directions[known == c].mean(axis=0) for c in range(4 * SHAPES)])
    return ((features.transform(fresh) @ means.T).argmax(axis=1) == target.numpy()).mean()


def test_without_descent(tmp_path, monkeypatch):
    monkeypatch.setattr(body_filters, "FILTERS", 16)
    monkeypatch.setattr(body_filters, "PATCHES", 2000)
    images = shapes()
    net = body_filters.solve(lambda *size: body.draw(images, *size), 480, images.classes, body.FEATURES)
    assert nearest_mean(net) > 0.3
    body.save(net, {"filters": 16}, tmp_path / "body.npz")
    pixels = images.pixels[:5]
    assert torch.equal(body.load(tmp_path / "body.npz")(pixels), net(pixels))


def test_by_descent(tmp_path):
    size = body.Size(((8,), (8,), (16,)), epochs=4, batch=40, lr=3e-3, minutes=math.inf)
    first, *_, last = body.train(shapes(), size, "cpu")
    assert (first.epochs, last.epochs) == (1.0, 4.0)
    assert last.loss < 0.8 * first.loss
    body.save(last.net, {"stages": size.stages}, tmp_path / "body.npz")
    assert nearest_mean(body.load(tmp_path / "body.npz")) > 0.3


def test_a_body_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="python -m benchmarks body --out"):
        body.load(tmp_path / "none.npz")
