"""The few-shot face: learns new classes from few images, says what it costs, refuses what it cannot say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from cloister import Ledger, Plan, Tasks, adapt, run
from cloister.algorithms import MetaSGD
from cloister.datasets import pack
from cloister.engines import Batched, Local
from cloister.errors import InputError, PlanError
from cloister.estimators import FewShotClassifier
from cloister.estimators.few_shot import ADAPTING, FewShotModel
from cloister.learners import Descent, Module, glyph_net
from cloister.mechanisms import NoNoise
from cloister.networks.public_features import Unpack

SIDE = 8


def glyphs(tasks: int, seed: int, shots: int = 4) -> Tasks:
    """Each class of a task is a random glyph of its own; in each row a tenth of its pixels are wrong."""
    rng = np.random.default_rng(seed)
    shapes = rng.random((tasks, 2, 1, SIDE, SIDE)) < 0.4
    rows = np.repeat(shapes, shots, axis=1) ^ (rng.random((tasks, 2 * shots, 1, SIDE, SIDE)) < 0.1)
    y = np.tile(np.repeat([0, 1], shots), tasks)
    X = rows.reshape(-1, 1, SIDE, SIDE).astype(np.float32)
    return Tasks.from_arrays(X, y, np.repeat(np.arange(tasks), 2 * shots))


def bytes_of(tasks: Tasks) -> np.ndarray:
    return (tasks.X * 255).astype(np.uint8)


def test_packed_images_are_the_images():
    images = np.random.default_rng(0).integers(256, size=(5, 1, 7, 9), dtype=np.uint8)
    pixels = Unpack(1, 7, 9)(torch.from_numpy(pack(images)))
    np.testing.assert_allclose(pixels, images / np.float32(255), rtol=1e-6)


def test_a_network_of_packed_images_runs_as_one_program_and_trains_the_same():
    tasks = glyphs(3, seed=0)
    packed = Tasks(tasks.ids, pack(bytes_of(tasks)), tasks.y, tasks.weight, tasks.offsets)
    ended = []
    for data, is_packed in ((tasks, False), (packed, True)):
        learner = Module(glyph_net(2, 4, (1, SIDE, SIDE), is_packed))
        block = next(data.blocks())
        start = learner.spread(learner.start(), block)
        ended.append(learner.descend(start, block, Descent(0.1, batch=4, steps=3), 0))
        assert learner.trainer.swapped is not None
    np.testing.assert_allclose(*ended, atol=1e-6)


@pytest.mark.parametrize("engine", [Local(), Batched("cpu")])
def test_without_finish_the_board_is_the_same_and_nobody_ends_with_a_model(engine):
    tasks = glyphs(5, seed=1)
    plan = Plan(
        MetaSGD(Module(glyph_net(2, 4, (1, SIDE, SIDE), False)), Descent(0.1, steps=2), rounds=2),
        NoNoise(),
        n_tasks=5,
    )
    whole, public = (run(plan, tasks, random_state=0, engine=engine, finish=f) for f in (True, False))
    np.testing.assert_array_equal(whole.board["mean"], public.board["mean"])
    assert public.private.models == {}
    assert adapt(plan, public.board, tasks, engine=engine)["coef"].shape == whole.private.models["coef"].shape


def strokes(tasks: int, seed: int, shots: int) -> Tasks:
    """Two classes, a stroke dark or light: half of it common to all tasks, half their own, in loud noise."""
    rng = np.random.default_rng(seed)
    common = np.random.default_rng(0).normal(size=(3, SIDE * SIDE)) / SIDE
    own = np.array([1.0, 0.0, 0.0]) + rng.normal(0, 0.5, (tasks, 3))
    stroke = own / np.linalg.norm(own, axis=1, keepdims=True) @ common
    y = np.tile(np.repeat([0, 1], shots), (tasks, 1))
    rows = 4 * (1 - 2 * y)[..., None] * stroke[:, None] + rng.normal(0, 2, (*y.shape, SIDE * SIDE))
    X = rows.reshape(-1, 1, SIDE, SIDE).astype(np.float32)
    return Tasks.from_arrays(X, y.ravel(), np.repeat(np.arange(tasks), 2 * shots))


def errors(adapted, fresh: Tasks, shots: int) -> np.ndarray:
    """Count each task's errors on what it did not see, adapted to its first images of both classes."""
    found = []
    for own in map(fresh.only, range(len(fresh))):
        seen = np.arange(len(own.y)) % (len(own.y) // 2) < shots
        names = np.array(["a", "b"])[own.y]
        found.append((adapted(own.X[seen], names[seen]).predict(own.X[~seen]) != names[~seen]).sum())
    return np.array(found)


def test_new_tasks_learn_faster_from_the_start_than_from_an_untrained_network():
    """If training did nothing, 26 of 32 tasks would do better by luck with odds of 3e-4."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 16), nn.Tanh(), nn.Linear(16, 2))
    face = FewShotClassifier(net, epsilon=math.inf, ways=2, rounds=5, random_state=0)
    trained, learner = face.fit(strokes(60, seed=1, shots=4)), Module(net)

    def untrained(X, y):
        classes, target = np.unique(y, return_inverse=True)
        block = next(Tasks.from_arrays(X, target, np.zeros(len(X), dtype=int)).blocks())
        start = learner.start()
        own = ADAPTING.tune(learner, learner.spread(start, block), block, 0, start)
        return FewShotModel(learner, classes, own)

    fresh = strokes(32, seed=2, shots=22)
    with_it, without = (errors(adapted, fresh, shots=2) for adapted in (trained.adapt, untrained))
    assert (with_it < without).sum() >= 26
    assert not trained.guarantee_.holds


def test_what_it_costs_is_known_before_and_kept_after():
    tasks = glyphs(30, seed=4)
    face = FewShotClassifier(epsilon=2.0, ways=2, rounds=3)
    promised = face.plan(30, glyph_net(2, shape=(1, SIDE, SIDE), packed=False)).guarantee
    assert promised.epsilon == pytest.approx(2.0, rel=1e-3)
    face.fit(tasks)
    assert face.guarantee_.epsilon == promised.epsilon
    assert face.guarantee_.holds
    assert face.billboard_.rounds == 3


def test_what_is_said_about_shared_rows_is_in_the_guarantee():
    told = FewShotClassifier(ways=2, rounds=1, group_size=2, delta=0.01).fit(glyphs(6, seed=5))
    assert "up to 2 tasks" in str(told.guarantee_)


def test_refusals():
    tasks = glyphs(4, seed=6)
    with pytest.raises(InputError, match="whole numbers from 0 to 0"):
        FewShotClassifier(ways=1).fit(tasks)
    with pytest.raises(InputError, match="The default network takes images"):
        FewShotClassifier(ways=2).fit(Tasks.from_arrays(np.eye(4), np.arange(4) % 2, np.arange(4) // 2))
    with pytest.raises(InputError, match="epsilon must be > 0"):
        FewShotClassifier(epsilon=0.0).plan(10, nn.Linear(2, 2))
    model = FewShotClassifier(epsilon=math.inf, ways=2, rounds=1).fit(tasks)
    with pytest.raises(InputError, match="A task may have 2 classes"):
        model.adapt(tasks.X[:3], [1, 2, 3])
    for X, y in ((tasks.X[:0], []), (tasks.X[:3], [0, 1]), (0.5, [0])):
        with pytest.raises(InputError, match="rows of one task, at least one"):
            model.adapt(X, y)
    for fields in ({"ways": 0}, {"ways": 2.0}, {"ways": "two"}, {"group_size": 0}, {"group_size": 1.5}):
        with pytest.raises(InputError, match=f"{next(iter(fields))} must be a whole number"):
            FewShotClassifier(**{"ways": 2} | fields).fit(tasks)
    with pytest.raises(PlanError, match="relation must be"):
        FewShotClassifier(ways=2, relation="swap").fit(tasks)


def test_a_network_that_does_not_fit_costs_nothing():
    tasks, ledger = glyphs(30, seed=7), Ledger(9.0, 1e-2)
    narrow = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 2))
    with pytest.raises(InputError, match="one score for each of ways=3"):
        FewShotClassifier(narrow, ways=3, rounds=1, ledger=ledger).fit(tasks)
    with pytest.raises(InputError, match="cannot take"):
        FewShotClassifier(nn.Linear(9, 2), ways=2, rounds=1, ledger=ledger).fit(tasks)
    assert ledger.history == ()


def test_bytes_are_pixels():
    tasks = glyphs(6, seed=8)
    raw = Tasks(tasks.ids, bytes_of(tasks), tasks.y, tasks.weight, tasks.offsets)
    boards, found = [], []
    for data in (tasks, raw):
        torch.manual_seed(0)
        model = FewShotClassifier(epsilon=math.inf, ways=2, rounds=1, random_state=0).fit(data)
        boards.append(model.billboard_["mean"])
        found.append(model.adapt(data.X[:8], data.y[:8]).predict(data.X[8:]))
    np.testing.assert_array_equal(*boards)
    np.testing.assert_array_equal(*found)
