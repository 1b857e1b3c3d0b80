"""Omniglot: the file, the split, and what a task is made of, on the real file and on a made-up one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cloister.datasets import Omniglot, disjoint_episodes, drawer_episodes, episodes, load_omniglot, pack
from cloister.errors import InputError
from cloister.plan.overlap import overlap


def made_up(characters: int = 12, drawers: int = 6) -> Omniglot:
    """Two alphabets; every image is different."""
    count = characters * drawers
    character = np.repeat(np.arange(characters), drawers)
    images = np.random.default_rng(0).integers(256, size=(count, 28, 28), dtype=np.uint8)
    return Omniglot(images, character, character % 2, np.tile(np.arange(drawers), characters))


def check_rows(cut, data, ways, shots):
    """Each task has `ways` characters, one label for each, and its rows are the images it names."""
    tasks, images = cut.tasks, cut.images
    assert set(tasks.sizes) == {ways * shots}
    np.testing.assert_array_equal(tasks.X, pack(data.images)[images])
    characters = data.character[images].reshape(len(tasks), ways, shots)
    labels = tasks.y.reshape(len(tasks), ways, shots)
    assert (labels == np.arange(ways)[:, None]).all()
    assert (characters == characters[:, :, :1]).all()
    assert all(len(set(row)) == ways for row in characters[:, :, 0].tolist())
    assert all(len(set(row)) == ways * shots for row in images.reshape(len(tasks), -1).tolist())


def test_the_real_file(data_folder: Path):
    path = data_folder / "omniglot_28.npz"
    if not path.exists():
        pytest.skip(f"no file {path}: it is not part of the project")
    data = load_omniglot(path)
    assert repr(data) == "Omniglot(1623 characters, 32460 images)"
    train, test = data.split()
    assert len(np.unique(train.character)) == 1461
    assert len(np.unique(test.character)) == 162
    assert not set(train.character) & set(test.character)
    dealt = disjoint_episodes(train)
    assert len(dealt.tasks) == 584
    assert overlap(dealt.tasks, dealt.images).largest == 1


def test_drawn_episodes():
    data = made_up()
    cut = episodes(data, 300, ways=4, shots=2, queries=3, seed=5)
    check_rows(cut, data, 4, 2)
    assert cut.queries is not None
    assert set(cut.queries.sizes) == {12}
    for i in range(20):  # the same characters have the same labels, in other images
        seen, asked = (
            {label: set(map(bytes, part.only(i).X[part.only(i).y == label])) for label in range(4)}
            for part in (cut.tasks, cut.queries)
        )
        owner = {bytes(row): c for row, c in zip(pack(data.images), data.character, strict=True)}
        for label in range(4):
            assert not seen[label] & asked[label]
            assert len({owner[row] for row in seen[label] | asked[label]}) == 1


def test_labels_are_given_at_random():
    """Each of 12 characters has each of 4 labels about as often: chi-square with 33 degrees, alarm 1e-4."""
    data = made_up()
    cut = episodes(data, 3000, ways=4, shots=1)
    table = np.zeros((12, 4))
    np.add.at(table, (data.character[cut.images], cut.tasks.y), 1)
    assert ((table - 250) ** 2 / 250).sum() < 75


def test_draws_depend_on_the_seed_alone():
    data = made_up()
    one, same, other = (episodes(data, 20, ways=3, shots=2, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.images, same.images)
    assert (one.images != other.images).any()


def test_no_image_is_dealt_twice():
    data = made_up()
    cut = disjoint_episodes(data, ways=5, shots=2)
    check_rows(cut, data, 5, 2)
    assert len(cut.tasks) == 2 * 3
    assert overlap(cut.tasks).largest == 1
    assert overlap(cut.tasks, data.character[cut.images]).largest == 3


def test_a_task_of_a_hand():
    data = made_up()
    cut = drawer_episodes(data, ways=2)
    check_rows(cut, data, 2, 1)
    hands = data.hand[cut.images]
    assert (hands[::2] == hands[1::2]).all()
    assert overlap(cut.tasks, hands).largest == 3
    assert overlap(cut.tasks).largest == 1
    once = drawer_episodes(data, ways=2, tasks_per_hand=1)
    assert overlap(once.tasks, data.hand[once.images]).largest == 1
    assert len(once.tasks) == 12


def test_refusals(tmp_path: Path):
    with pytest.raises(InputError, match=r"must be an \.npz file with the arrays X, char, alphabet, drawer"):
        load_omniglot(tmp_path / "missing.npz")
    data = made_up()
    labels = {"char": data.character, "alphabet": data.alphabet, "drawer": data.drawer}
    for wrong, match in (
        (labels | {"X": data.images[:, :5]}, "X of bytes"),
        (labels | {"X": data.images, "char": data.character * 0.5}, "whole numbers"),
        (labels | {"X": data.images, "char": np.minimum(data.character, 10)}, "as many images"),
    ):
        np.savez(tmp_path / "wrong.npz", **wrong)
        with pytest.raises(InputError, match=match):
            load_omniglot(tmp_path / "wrong.npz")
    with pytest.raises(InputError, match="2 to 12 ways and 1 to 6 images"):
        episodes(data, 3, ways=5, shots=7)
    with pytest.raises(InputError, match="between 1 and 11"):
        data.split(12)
    with pytest.raises(InputError, match="No hand drew 9 characters"):
        drawer_episodes(data, ways=9)
