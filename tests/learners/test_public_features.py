"""Public bodies: bounded rows that depend on one row each, under names that stand for the body."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from torch import nn

import cloister as cl
from cloister.errors import InputError
from cloister.learners import PublicFeatures

SHAPE = (1, 6, 6)
RNG = np.random.default_rng(0)
IMAGES, LABELS, OWNER = RNG.random((120, *SHAPE)), np.arange(120) % 2, np.arange(120) // 6


def small_net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 5)
    )


def public_body(**settings):
    """Return a body that has seen public images, so that its running statistics are not those of a start."""
    net = small_net()
    net(torch.randn(50, *SHAPE, generator=torch.Generator().manual_seed(1)))
    return PublicFeatures(net, SHAPE, **settings)


def test_features_are_the_directions_of_what_the_network_says_in_evaluation_mode():
    body = public_body()
    kept = copy.deepcopy(body.net.state_dict())
    found = body.transform(IMAGES)
    with torch.no_grad():
        said = copy.deepcopy(body.net).eval()(torch.as_tensor(IMAGES, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(found, said / np.linalg.norm(said, axis=1, keepdims=True), atol=1e-6)
    assert body.net.training
    assert all(torch.equal(kept[name], value) for name, value in body.net.state_dict().items())
    with torch.no_grad():
        body.net[-1].weight.zero_()  # the body is what it was when it was given
    assert np.array_equal(body.transform(IMAGES), found)


@pytest.mark.parametrize("absurd", [np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0])
def test_no_row_is_longer_than_1_and_none_reaches_another(absurd):
    spoilt = IMAGES.copy()
    spoilt[7] = absurd
    body = public_body()
    found = body.transform(spoilt)
    assert (np.linalg.norm(found, axis=1) <= 1).all()
    others = np.arange(len(IMAGES)) != 7
    assert np.array_equal(found[others], body.transform(IMAGES)[others])


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_however_large_or_small_the_outputs_are(scale):
    body = PublicFeatures(_Scaled(scale), (3,))
    found = body.transform(np.array([[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]]))
    expected = np.array([1.0, 2.0, 2.0]) / 3 if scale else np.zeros(3)
    np.testing.assert_allclose(found, [expected, np.zeros(3)], rtol=1e-6)
    assert (np.linalg.norm(found, axis=1) <= 1).all()


class _Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, x):
        return x * self.scale


def test_one_at_a_time_a_row_is_the_same_to_the_bit_whoever_is_there():
    body, order = public_body(), np.random.default_rng(2).permutation(120)[:77]
    assert np.array_equal(body.transform(IMAGES)[order], body.transform(IMAGES[order]))


def test_codes_beyond_the_table_stop_nobody():
    torch.manual_seed(0)
    body = PublicFeatures(nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3)), (3,), dtype=int)
    texts = np.array([[0, 1, 8], [-5, 99, 2**40]])
    assert np.array_equal(body.transform(texts)[:1], body.transform(texts[:1]))
    assert np.isfinite(body.transform(texts)).all()


def test_each_task_is_computed_by_itself():
    body = public_body()
    tasks = cl.Tasks.from_arrays(IMAGES, LABELS, OWNER).with_groups({task: task % 3 for task in range(20)})
    found = body.tasks(tasks)
    assert np.array_equal(found.y, tasks.y)
    assert np.array_equal(found.groups, tasks.groups)
    np.testing.assert_allclose(found.X, body.transform(IMAGES), atol=1e-6)
    for i in range(20):
        assert np.array_equal(found.X[6 * i : 6 * i + 6], body.tasks(tasks.select([i])).X)


class _Unsaved(_Scaled):
    def __init__(self, shift):
        super().__init__(1.0)
        self.register_buffer("shift", torch.tensor(shift), persistent=False)

    def forward(self, x):
        return x + self.shift


def test_the_fingerprint_covers_buffers_that_are_not_saved():
    one, other = (PublicFeatures(_Unsaved(shift), (3,)) for shift in (1.0, 2.0))
    assert one.fingerprint != other.fingerprint


class _Crowded(nn.Module):
    """Has room for ten rows of a kind."""

    def forward(self, x):
        return x * ((x[:, :1] > 0).cumsum(0) <= 10)


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36, track_running_stats=False)), "mixes examples"),
        (nn.Sequential(nn.Flatten(), _Crowded()), "mixes examples: among"),
        (nn.Sequential(nn.Flatten(0), nn.Linear(36, 2)), "cannot take"),
        (nn.Sequential(nn.Flatten(), nn.Linear(35, 2)), "cannot take"),
        (np.tanh, "must be a torch.nn.Module"),
    ],
)
def test_a_network_that_is_no_function_of_one_row_is_refused(net, words):
    with pytest.raises(InputError, match=words):
        PublicFeatures(net, SHAPE)


class _Draws(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x.flatten(1), training=True)


def test_coins_are_refused():
    with pytest.raises(InputError, match="draws at random"):
        PublicFeatures(_Draws(), SHAPE)


@pytest.mark.parametrize("rows", [np.zeros((4, 6, 6)), np.zeros((4, 1, 6, 6), dtype=complex), np.array(1.0)])
def test_rows_of_another_shape_or_kind_are_refused(rows):
    with pytest.raises(InputError, match=r"X must have numbers of shape \('rows', 1, 6, 6\)"):
        public_body().transform(rows)


def test_a_run_is_for_its_body(tmp_path):
    """Columns are called by the body: a saved run takes its features, beside others, and no other body's."""
    body = public_body(name="scan")
    bounds = {"age": (0, 1), "target": [0, 1], **body.bounds}
    model = cl.SharedPriorClassifier(epsilon=1.0, bounds=bounds, random_state=0)
    age = RNG.random(120)
    model.fit({"age": age, **body.columns(IMAGES)}, LABELS, tasks=OWNER)
    assert model.guarantee_.epsilon <= 1.0
    assert model.coef_.shape == (20, 6)
    model.save(tmp_path / "run")
    again = cl.load(tmp_path / "run")
    rows = {"age": age, **body.columns(IMAGES)}
    assert np.array_equal(again.predict(rows, tasks=OWNER), model.predict(rows, tasks=OWNER))
    other = copy.deepcopy(body.net)
    with torch.no_grad():
        other[-1].bias[0] += 1e-3
    changed = PublicFeatures(other, SHAPE, name="scan")
    assert not set(changed.names) & set(body.names)
    with pytest.raises(InputError, match=body.fingerprint[:8]):
        again.predict({"age": age, **changed.columns(IMAGES)}, tasks=OWNER)


def test_it_is_a_transformer():
    body = public_body()
    twin = clone(body)
    assert twin.fingerprint == body.fingerprint
    assert np.array_equal(twin.fit(IMAGES).transform(IMAGES), body.transform(IMAGES))
    bounds = dict(enumerate(body.bounds.values())) | {"target": [0, 1]}
    model = make_pipeline(body, cl.SharedPriorClassifier(epsilon=1.0, bounds=bounds, random_state=0))
    model.fit(IMAGES, LABELS, sharedpriorclassifier__tasks=OWNER)
    assert model.predict(IMAGES, tasks=OWNER).shape == (120,)
