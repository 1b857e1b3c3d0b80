"""Exact noise computed on a graphics card is what the processor draws, bit for bit."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from cloister.privacy import chacha_proposals
from cloister.privacy.chacha_proposals import Call
from cloister.privacy.noise import LARGEST_DEVIATION, discrete_gaussian
from cloister.privacy.randomness import SeededRandomness

needs_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no graphics card")
has_triton = importlib.util.find_spec("triton") is not None

DEVIATIONS = [1, 5, 1001, 2**20 + 3, 2**31 - 1, 2**31 + 5, 2**40 - 1, LARGEST_DEVIATION]


def compare(deviation, count, device):
    from cloister.networks.card_noise import CardSampler

    call = Call(bytes(range(100, 132)), 2**40 + 7)
    found, right = (
        sampler(call, count, deviation)
        for sampler in (CardSampler(torch.device(device)), chacha_proposals.on_processor)
    )
    settled = np.ones(len(right.values), dtype=bool)
    settled[right.doubtful] = False
    np.testing.assert_array_equal(found.doubtful, right.doubtful)
    np.testing.assert_array_equal(found.numbers, right.numbers)
    np.testing.assert_array_equal(found.values[settled], right.values[settled])


def several_calls(device):
    """Check that what a call returned stays as it is: one draw may need several, which share their memory."""
    from cloister.networks.card_noise import CardSampler

    sampler = CardSampler(torch.device(device))
    calls = [Call(bytes(32), number) for number in range(3)]
    for found, call in zip([sampler(call, 601, 1001) for call in calls], calls, strict=True):
        np.testing.assert_array_equal(found.values, chacha_proposals.on_processor(call, 601, 1001).values)


@needs_card
def test_results_of_a_card_stay():
    several_calls("cuda")


@needs_card
@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_a_card_finds_the_candidates_of_the_processor(deviation, monkeypatch):
    compare(deviation, 300_001, "cuda")
    monkeypatch.setattr(chacha_proposals, "DOUBT", 2**27)  # many are in doubt
    compare(deviation, 10_001, "cuda")


@needs_card
def test_a_card_draws_the_noise_of_the_processor():
    from cloister.networks.card_noise import CardSampler

    source = SeededRandomness(4)
    streams = source.stream("noise"), source.sampled_by(CardSampler(torch.device("cuda"))).stream("noise")
    one, two = (discrete_gaussian(2**25 - 9, 1_000_000, stream) for stream in streams)
    np.testing.assert_array_equal(one, two)


@pytest.mark.skipif(torch.cuda.is_available(), reason="they are tried on the card itself")
@pytest.mark.skipif(not has_triton, reason="triton is not installed")
def test_candidates_of_a_card_interpreted():
    """In a process of its own: Triton reads its switch when it is first imported."""
    code = (
        "import test_card_noise as t; [t.compare(d, 601, 'cpu') for d in t.DEVIATIONS];"
        "t.several_calls('cpu'); t.candidates.DOUBT = 2**27; t.compare(1001, 601, 'cpu')"
    )
    paths = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
