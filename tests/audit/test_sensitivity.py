"""The search reaches what channels claim, and no more; it convicts a claim that is 5 % too small."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from cloister.audit.releases import released_total
from cloister.audit.sensitivity import furthest, furthest_on
from cloister.channel import (
    Absolute,
    Channel,
    Diagonal,
    MeanAndOuter,
    MeanAndSquares,
    Outer,
    Plain,
    Relation,
    SumOfOuters,
    SumOfSquares,
)
from cloister.mechanisms import Gaussian

LIFTS = [
    *(Plain(), Absolute(), Outer(), Diagonal(), MeanAndOuter(0.3), MeanAndOuter(0.9)),
    *(SumOfOuters(2), SumOfSquares(2), MeanAndSquares(0.3, 2), MeanAndSquares(2 / 3, 2)),
]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("lift", LIFTS, ids=repr)
def test_claims_are_reached_and_not_exceeded(lift, relation, exact):
    total = partial(released_total, Gaussian(1.0, exact=exact))
    found = furthest_on(Channel(6, clip=0.7, lift=lift), relation, total=total, tries=600)
    assert found.ratio >= 0.999
    assert not found.breach


@pytest.mark.parametrize("lift", LIFTS, ids=repr)
def test_a_sensitivity_that_is_understated_is_found(lift):
    @dataclass(frozen=True)
    class Understated(type(lift)):
        def sensitivity(self, relation):
            return 0.95 * super().sensitivity(relation)

    broken = Understated(*(getattr(lift, name) for name in lift.__dataclass_fields__))
    found = furthest_on(Channel(4, lift=broken), Relation.REPLACE, tries=200)
    assert found.breach
    assert found.ratio == pytest.approx(1 / 0.95, rel=1e-3)


@dataclass(frozen=True)
class Trusting(Channel):
    """A channel that clips whatever is finite, and lets the rest through as it is."""

    def units(self, messages):
        with np.errstate(all="ignore"):
            return messages / np.maximum(self.clip, np.linalg.norm(messages, axis=1, keepdims=True))


def test_hostile_numbers_are_tried():
    """Such norms overflow and such messages are not numbers: found from harmless pairs by changes alone."""
    channel = Trusting(3)
    start = [(np.array([1.0, 0.0, 0.0]), np.zeros(3))]
    found = furthest(channel.total, start, 2.0, Relation.REPLACE, tries=300)
    assert found.ratio == np.inf


def test_weights_that_depend_on_the_others_are_found():
    """Dividing by how many spoke: with nobody else a message moves the mean by the whole clip."""

    def mean_of_speakers(messages):
        units = Channel(2).units(messages)
        return units.sum(axis=0) / max(1, np.count_nonzero(units.any(axis=1)))

    start = [(np.array([1.0, 0.0]), np.zeros(2))]
    assert furthest(mean_of_speakers, start, 1 / 10, Relation.ZERO_OUT, tries=50).breach
