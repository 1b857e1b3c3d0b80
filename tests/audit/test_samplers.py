"""Exact noise of a faulty sampler, such as one on a card: the auditor convicts it for the right reason."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cloister import Plan
from cloister.algorithms import MeanRegularized
from cloister.audit import audit
from cloister.learners import LeastSquares
from cloister.networks import batched
from cloister.privacy.chacha_proposals import Call, agrees, on_processor

PLAN = Plan(MeanRegularized(LeastSquares(8), rounds=4), n_tasks=200).calibrate(1.0)


def wrong_key(call, count, deviation):
    """Compute with a key that is in the code, and not with that of the release."""
    return on_processor(Call(bytes(32), call.number), count, deviation)


def drawn_twice(call, count, deviation):
    """Begin anew half-way, as where a counter has lost a bit."""
    found = on_processor(call, count, deviation)
    half = found.values[: (len(found.values) + 1) // 2]
    return replace(found, values=np.tile(half, 2)[: len(found.values)])


def in_pairs(call, count, deviation):
    """Give each number to its neighbour too."""
    found = on_processor(call, count, deviation)
    return replace(found, values=np.repeat(found.values[::2], 2)[: len(found.values)])


def without_signs(call, count, deviation):
    found = on_processor(call, count, deviation)
    return replace(found, values=abs(found.values))


@pytest.mark.parametrize(
    ("sampler", "reason"),
    [
        (wrong_key, "the same under another key"),
        (drawn_twice, "comes again in others"),
        (in_pairs, "not what it is said to be (neighbours"),
        (without_signs, "not what it is said to be"),
    ],
)
def test_faulty_samplers_are_convicted(sampler, reason):
    found = audit(PLAN, draws=2000, random_state=1, sampler=sampler)
    assert found.convicted
    assert reason in found.verdict
    assert not agrees(sampler)  # and no engine would have asked it


def wrong_later(call, count, deviation):
    """Lose the sign of the last number where there are many."""
    found = on_processor(call, count, deviation)
    if count > 2001:
        found.values[-1] *= -1
    return found


def without_doubts(call, count, deviation):
    found, none = on_processor(call, count, deviation), np.zeros(0, dtype=np.int64)
    return replace(found, doubtful=none, numbers=none)


def elsewhere_in_doubt(call, count, deviation):
    found = on_processor(call, count, deviation)
    return replace(found, numbers=found.numbers + 1)


@pytest.mark.parametrize("sampler", [wrong_later, without_doubts, elsewhere_in_doubt])
def test_samplers_are_tried_with_as_many_candidates_as_releases_take(sampler):
    assert not agrees(sampler)


def test_what_a_candidate_in_doubt_would_be_is_nobodys_business():
    def marked(call, count, deviation):
        found = on_processor(call, count, deviation)
        found.values[found.doubtful] = -(2**63)
        return found

    assert agrees(marked)


def test_a_card_that_disagrees_is_not_asked(monkeypatch):
    faulty = SimpleNamespace(CardSampler=lambda device: wrong_key)
    monkeypatch.setitem(sys.modules, "cloister.networks.card_noise", faulty)
    batched._card_sampler.cache_clear()
    with pytest.warns(UserWarning, match="Card 0 computes other noise"):
        assert batched._card_sampler(0) is on_processor
    batched._card_sampler.cache_clear()


def test_a_right_sampler_is_acquitted():
    """As every one is that finds the candidates of the processor: its noise is the same."""
    asked = []

    def watched(*call):
        asked.append(call)
        return on_processor(*call)

    assert not audit(PLAN, draws=2000, random_state=1, sampler=watched).convicted
    assert len(asked) > 20  # calls for many numbers each: games, laws, freshness, last bits, one run


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no graphics card")
def test_a_card_is_acquitted():
    from cloister.engines import Batched

    assert not audit(PLAN, draws=2000, random_state=1, sampler=Batched("cuda").noise_sampler()).convicted
