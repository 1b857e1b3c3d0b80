"""Bodies of the benchmarks learn to tell bent shapes apart; views of an image, and copies made at home."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

pytest.importorskip("rich")

from benchmarks import body, body_filters, omniglot
from cloister import datasets
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


def test_features_that_tell_most_come_first():
    """Turning them changes no angle between two images, and orders how far means of classes lie apart."""
    torch.manual_seed(0)
    net, images = body.body(((8,), (8,), (16,))), shapes()
    (pixels, classes), directions = next(body.draw(images, 480, 480)), []
    for _ in range(2):
        directions.append(torch.nn.functional.normalize(net(pixels), dim=1).detach())
        body.foremost_first(net, [(pixels, classes)])
    before, after = directions
    assert torch.allclose(before @ before.T, after @ after.T, atol=1e-5)
    means = torch.stack([after[classes == c].mean(0) for c in range(4 * SHAPES)])
    apart = means.var(0)
    assert (apart[:-1] >= apart[1:] - 1e-7).all()
    assert apart[0] > 10 * apart[-1]


def test_views_of_an_image_are_its_own():
    torch.manual_seed(0)
    net, pixels = body.Views(body.body(((8,), (8,), (16,))), zoom=0.85), shapes().pixels[::10]
    together = net(pixels)
    assert together.shape == (SHAPES, body.FEATURES)
    assert (together.norm(dim=1) <= 1 + 1e-6).all()
    assert torch.allclose(net(pixels[3:4])[0], together[3], atol=1e-5)


def test_copies_are_made_of_a_tasks_own_images():
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (12, 28, 28), dtype=np.uint8)
    each = np.repeat(np.arange(6), 2)
    data = datasets.Omniglot(pictures, each, np.zeros(12, int), np.tile([0, 1], 6))
    cut = datasets.drawer_episodes(data, ways=3)
    grown = omniglot.with_copies(data, cut, copies=4)
    assert grown.tasks.sizes.tolist() == [12, 12, 12, 12]
    assert np.array_equal(grown.images, np.repeat(cut.images, 4))
    assert np.array_equal(grown.tasks.X[::4], cut.tasks.X)
    assert np.array_equal(grown.tasks.y, np.repeat(cut.tasks.y, 4))
    others = pictures.copy()
    others[cut.images[3:]] = 0  # other tasks' images
    again = omniglot.with_copies(datasets.Omniglot(others, each, data.alphabet, data.drawer), cut, copies=4)
    assert np.array_equal(again.tasks.X[:12], grown.tasks.X[:12])


def test_a_body_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="python -m benchmarks body --out"):
        body.load(tmp_path / "none.npz")
