"""The few-shot face: learns new classes from few images, says what it costs, refuses what it cannot say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from cloister import (
    Batched,
    Descent,
    FewShotClassifier,
    Ledger,
    Local,
    MetaSGD,
    Module,
    Plan,
    PlanError,
    PublicOnly,
    Silent,
    Tasks,
    adapt,
    glyph_net,
    run,
)
from cloister.datasets import pack
from cloister.errors import InputError
from cloister.learners.pixels import Unpack

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
def test_public_only_posts_the_same_board_and_nobody_ends_with_a_model(engine):
    tasks = glyphs(5, seed=1)
    plan = Plan(
        MetaSGD(Module(glyph_net(2, 4, (1, SIDE, SIDE), False)), Descent(0.1, steps=2), rounds=2),
        Silent(),
        n_tasks=5,
    )
    whole, public = (run(plan, tasks, random_state=0, engine=e) for e in (engine, PublicOnly(engine)))
    np.testing.assert_array_equal(whole.board["mean"], public.board["mean"])
    assert public.private.models == {}
    assert adapt(plan, public.board, tasks, engine=engine)["coef"].shape == whole.private.models["coef"].shape


def test_new_classes_from_few_images():
    """Whoever guesses gets half; to get 52 of 64 by luck has odds below 1e-6."""
    net = glyph_net(2, 8, (1, SIDE, SIDE), packed=False)
    face = FewShotClassifier(net, epsilon=math.inf, ways=2, rounds=5, random_state=0)
    model, fresh, right = face.fit(glyphs(40, seed=2)), glyphs(4, seed=3, shots=12), 0
    for i in range(4):
        own = fresh.only(i)
        seen = np.arange(24) % 12 < 4
        found = model.adapt(own.X[seen], np.array(["a", "b"])[own.y[seen]]).predict(own.X[~seen])
        right += int((found == np.array(["a", "b"])[own.y[~seen]]).sum())
    assert right >= 52
    assert not model.guarantee_.holds


def test_what_it_costs_is_known_before_and_kept_after():
    tasks = glyphs(30, seed=4)
    face = FewShotClassifier(epsilon=2.0, ways=2, rounds=3)
    promised = face.plan(30, glyph_net(2, shape=(1, SIDE, SIDE), packed=False)).guarantee
    assert promised.epsilon == pytest.approx(2.0, rel=1e-3)
    face.fit(tasks)
    assert face.guarantee_.epsilon == promised.epsilon
    assert face.guarantee_.holds
    assert face.billboard_.rounds == 3


def test_tasks_that_share_rows_are_refused_unless_it_is_said():
    tasks = glyphs(6, seed=5)
    X = tasks.X.copy()
    X[8] = X[0]
    shared = Tasks(tasks.ids, X, tasks.y, tasks.weight, tasks.offsets)
    with pytest.raises(InputError, match="sits in 2 tasks, more than group_size=1"):
        FewShotClassifier(ways=2, rounds=1).fit(shared)
    told = FewShotClassifier(ways=2, rounds=1, group_size=2, delta=0.01).fit(shared)
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
