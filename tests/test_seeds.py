"""What tests draw: by a seed that they or the command line say, by no name and in no order."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

SUITE = """
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies

from cloister.privacy.randomness import SystemRandomness


def key():
    return SystemRandomness().key.hex()


def note(name, **drawn):
    (Path(__file__).parent / f"{name}.json").write_text(json.dumps(drawn))


@pytest.fixture(scope="module")
def shared():
    return key()


@pytest.fixture
def own():
    return key()


def test_one(shared, own):
    note("one", shared=shared, own=[own, key(), key(), torch.rand(1).item()])


def test_another_name(own, shared):
    note("two", shared=shared, own=[own, key(), key(), torch.rand(1).item()])


@pytest.mark.noise_seed(7)
def test_marked(own, shared):
    note("marked", shared=shared, own=[own, key(), key(), torch.rand(1).item()])


FOUND = [], []


@given(strategies.integers())
def test_examples(number):
    FOUND[0].append(number)


@given(strategies.integers())
def test_examples_by_another_name(number):
    FOUND[1].append(number)


def test_the_same_examples():
    note("examples", one=FOUND[0], two=FOUND[1])
"""


def drawn(folder, seed):
    """Return what each test of the suite draws under a seed of the command line."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--noise-seed={seed}", folder]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    return {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}


def test_draws_hang_on_seeds_alone(tmp_path):
    """Not on a test's name, nor on who asks first for a fixture; and a test's own seed wins."""
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "test_suite.py").write_text(SUITE, encoding="utf-8")
    plain, other = (drawn(tmp_path, seed) for seed in (0, 7))
    for found in (plain, other):
        assert found["one"] == found["two"]
        assert found["marked"]["shared"] == found["one"]["shared"]
        assert found["examples"]["one"] == found["examples"]["two"]
    assert len({plain["one"]["shared"], *plain["one"]["own"], *plain["marked"]["own"]}) == 9
    assert other["one"]["own"] == other["marked"]["own"] == plain["marked"]["own"]
    assert other["one"]["shared"] != plain["one"]["shared"]
    assert other["examples"] != plain["examples"]
