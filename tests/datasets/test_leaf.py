"""LEAF's JSON files, written here in small."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cloister.datasets import (
    SHAKESPEARE_ALPHABET,
    leaf_celeba,
    leaf_femnist,
    leaf_shakespeare,
    leaf_stackoverflow,
)
from cloister.errors import InputError


def leaf(path, users):
    """Write {user: (x, y)} as a LEAF file."""
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def glyph(value):
    return [value] * 783 + [1.0]


def test_femnist(tmp_path):
    path = leaf(
        tmp_path / "a.json", {"f01_14": ([glyph(0.5), glyph(0.0)], [61, 0]), "f00_01": ([glyph(1)], [5])}
    )
    tasks = leaf_femnist(path)
    assert tasks.ids.tolist() == ["f00_01", "f01_14"]
    assert (tasks.X.shape, tasks.X.dtype, tasks.y.dtype) == ((3, 1, 28, 28), np.float32, np.int64)
    assert tasks.only("f01_14").y.tolist() == [61, 0]
    np.testing.assert_array_equal(tasks.only("f01_14").X[:, 0, 27, 26:], [[0.5, 1], [0, 1]])


def test_a_folder_is_read_file_by_file(tmp_path):
    leaf(tmp_path / "all_data_1.json", {"b": ([glyph(0)], [1]), "nobody": ([], [])})
    leaf(tmp_path / "all_data_0.json", {"a": ([glyph(0)] * 2, [2, 3])})
    (tmp_path / "README.txt").write_text("not data")
    tasks = leaf_femnist(tmp_path)
    assert (tasks.ids.tolist(), tasks.y.tolist()) == (["a", "b"], [2, 3, 1])
    leaf(tmp_path / "all_data_2.json", {"a": ([glyph(0)], [4])})
    with pytest.raises(InputError, match=r"all_data_2.json, user 'a': no user may be listed twice"):
        leaf_femnist(tmp_path)


def test_data_of_users_that_are_not_listed_is_ignored(tmp_path):
    """LEAF's own split leaves data of the users it removed."""
    path = leaf(tmp_path / "a.json", {"a": ([glyph(0)], [1])})
    content = json.loads(path.read_text())
    content["user_data"]["removed"] = {"x": [], "y": []}
    path.write_text(json.dumps(content | {"hierarchies": ["h"]}))
    assert leaf_femnist(path).ids.tolist() == ["a"]


def test_celeba_from_pixels_or_arrays_beside(tmp_path):
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)
    pixels, files = pictures.tolist(), ["000001.jpg", "000002.jpg", "3.jpg"]
    inline = leaf(tmp_path / "pixels.json", {"7": (pixels[:2], [1.0, 0.0]), "8": (pixels[2:], [1])})
    names = leaf(tmp_path / "names.json", {"7": (files[:2], [1.0, 0.0]), "8": (files[2:], [1])})
    folder = tmp_path / "npy"
    folder.mkdir()
    for name, picture in zip(["000001", "000002", "3"], pictures, strict=True):
        np.save(folder / f"{name}.npy", picture)
    for tasks in (leaf_celeba(inline), leaf_celeba(names, images=folder)):
        assert (tasks.X.shape, tasks.X.dtype, tasks.y.tolist()) == ((3, 3, 4, 5), np.float32, [1, 0, 1])
        np.testing.assert_allclose(tasks.X, np.moveaxis(pictures, 3, 1) / 255, rtol=1e-6)
    with pytest.raises(InputError, match=r"user '7': x names pictures .* reads no picture formats"):
        leaf_celeba(names)
    with pytest.raises(InputError, match=r"000001.npy must be an .npy array of numbers"):
        leaf_celeba(names, images=tmp_path)
    (tmp_path / "000001.npy").write_bytes(b"")
    with pytest.raises(InputError, match=r"000001.npy must be an .npy array of numbers"):
        leaf_celeba(names, images=tmp_path)
    with pytest.raises(InputError, match="values from 0 to 1"):
        leaf_celeba(inline, white=1.0)
    np.save(folder / "3.npy", pictures[2, :3])
    with pytest.raises(InputError, match=r"user '8': x must have one shape for all users. Got \(3, 3, 5\)"):
        leaf_celeba(names, images=folder)


def test_stackoverflow_takes_words_or_counts(tmp_path):
    words, tags = ["how", "sort", "list"], ["python", "c++"]
    texts = leaf(
        tmp_path / "t.json",
        {
            "1": (
                ["how to sort a list list", ["unknown"], [1, 2, 1]],
                ["python|java", ["c++", "python"], [0, 1]],
            ),
            "2": ([""], [[]]),
        },
    )
    tasks = leaf_stackoverflow(texts, words, tags)
    assert (tasks.X.dtype, tasks.y.dtype) == (np.float32, np.int64)
    np.testing.assert_allclose(tasks.X, [[0.25, 0.25, 0.5], [0, 0, 0], [0.25, 0.5, 0.25], [0, 0, 0]])
    np.testing.assert_array_equal(tasks.y, [[1, 0], [1, 1], [0, 1], [0, 0]])
    # Several labels a row pass through blocks and splits.
    assert {block.y.shape[2:] for block in tasks.blocks()} == {(2,)}
    assert tasks.split(0.3)[0].y.shape == (3, 2)
    with pytest.raises(InputError, match="words must list at least one entry, and none twice"):
        leaf_stackoverflow(texts, ["a", "a"], tags)


def test_shakespeare(tmp_path):
    assert len(set(SHAKESPEARE_ALPHABET)) == 80
    lines = ["\n " + "A" * 78, "}" * 80]
    path = leaf(tmp_path / "s.json", {"HAMLET": (lines, ["!", "a"])})
    tasks = leaf_shakespeare(path)
    assert (tasks.X.shape, tasks.X.dtype, tasks.y.dtype) == ((2, 80), np.int32, np.int64)
    assert ["".join(SHAKESPEARE_ALPHABET[code] for code in row) for row in tasks.X] == lines
    assert [SHAKESPEARE_ALPHABET[code] for code in tasks.y] == ["!", "a"]
    # Any order of the alphabet, characters beyond the basic plane included.
    path = leaf(tmp_path / "other.json", {"P": (["b𝄞a"], ["𝄞"])})
    tasks = leaf_shakespeare(path, alphabet="𝄞ba", length=3)
    assert (tasks.X.tolist(), tasks.y.tolist()) == ([[1, 0, 2]], [0])
    with pytest.raises(InputError, match="user 'P': x has 'b', which is not in the alphabet"):
        leaf_shakespeare(path, alphabet="a𝄞", length=3)
    with pytest.raises(InputError, match="user 'P': a row of x must be a string of length 80"):
        leaf_shakespeare(path)


GOOD = {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [glyph(0.0)], "y": [1]}}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "must be a JSON file in LEAF's format. Got: "),
        ([1], "must hold the lists users and num_samples and the mapping user_data"),
        (GOOD | {"users": None}, "must hold the lists users"),
        (GOOD | {"users": ["a", "b"], "num_samples": [1, 1]}, "for each of its users. Got no data for 'b'"),
        (GOOD | {"num_samples": []}, "Got 1 users and 0 counts"),
        (
            GOOD | {"num_samples": [2]},
            "user 'a': x and y must be lists of as many rows as num_samples says, 2",
        ),
        (GOOD | {"user_data": {"a": [1]}}, "user 'a': x and y must be lists"),
        (GOOD | {"users": [], "num_samples": []}, "has no user with rows"),
        (GOOD | {"user_data": {"a": {"x": [[0.0] * 783], "y": [1]}}}, "user 'a': a row of x must have 784"),
        (GOOD | {"user_data": {"a": {"x": [glyph(1.5)], "y": [1]}}}, r"784 numbers in \[0, 1\]"),
        (GOOD | {"user_data": {"a": {"x": [glyph(float("nan"))], "y": [1]}}}, r"784 numbers in \[0, 1\]"),
        (GOOD | {"user_data": {"a": {"x": ["00001.png"], "y": [1]}}}, r"784 numbers in \[0, 1\]"),
        (GOOD | {"user_data": {"a": {"x": [glyph(0.0)], "y": [62]}}}, "whole numbers from 0 to 61"),
        (GOOD | {"user_data": {"a": {"x": [glyph(0.0)], "y": [0.5]}}}, "whole numbers from 0 to 61"),
        (GOOD | {"user_data": {"a": {"x": [glyph(0.0)], "y": [[1]]}}}, "whole numbers from 0 to 61"),
    ],
)
def test_malformed_files_are_refused_in_a_sentence(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InputError, match=message) as caught:
        leaf_femnist(path)
    assert "a.json" in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("row", [3, None, [1, 2], [[1, 2, 3]], [1, -1, 0], {"a": 1}, ["a", 1, 2]])
def test_malformed_words_and_tags_are_refused(tmp_path, row):
    path = leaf(tmp_path / "a.json", {"a": ([row], ["t"])})
    with pytest.raises(InputError, match="user 'a': a row of x must be a text, a list of words or 3 counts"):
        leaf_stackoverflow(path, ["a", "b", "c"], ["t"])
    path = leaf(tmp_path / "a.json", {"a": (["a"], [row if row != [1, 2] else [0, 0.5, 1]])})
    with pytest.raises(InputError, match=r"user 'a': a row of y must be tags .* or 3 numbers 0 or 1"):
        leaf_stackoverflow(path, ["a"], ["a", "b", "c"])


def test_an_empty_folder_or_no_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds no .json file"):
        leaf_femnist(tmp_path)
    with pytest.raises(InputError, match="must be a JSON file in LEAF's format"):
        leaf_femnist(tmp_path / "absent.json")
