"""The guarantee as a value: what it says, and that it survives a file."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.doubts import FLOATING_POINT, SEEDED, Doubt, Grade
from cloister.errors import InputError
from cloister.privacy import gaussian_dp
from cloister.privacy.guarantee import Guarantee, detection_bound

PLAIN = Guarantee(
    epsilon=1.0,
    delta=3.4e-4,
    relation="replace",
    n_tasks=205,
    accountant="exact Gaussian DP",
    participation="every task takes part in every round",
    noise="floating point, system entropy",
    other_epsilon=0.46,
)


def test_it_says_everything_an_officer_needs() -> None:
    text = str(PLAIN)
    assert "\n" not in text
    for part in (
        "(1, 0.00034)-joint differential privacy",
        "205 tasks",
        "relation replace",
        "collude",
        "5 % false alarms",
        "13.7 %",
        "zero_out epsilon is 0.46",
        "every task takes part in every round",
        "trusted curator sees each clipped message",
        "nothing is claimed against the curator",
        "system entropy",
        "exact Gaussian DP",
    ):
        assert part in text, part
    assert PLAIN.holds


def test_not_private() -> None:
    loud = replace(PLAIN, epsilon=math.inf, other_epsilon=math.inf)
    assert str(loud).startswith("NOT PRIVATE")
    assert not loud.holds
    assert "joint differential privacy" not in str(loud)


def test_nothing_leaves() -> None:
    silent = replace(PLAIN, epsilon=0.0, delta=0.0, other_epsilon=0.0)
    assert str(silent).startswith("Nothing leaves any task")
    assert silent.holds


def test_a_caveat_comes_first() -> None:
    broken = replace(PLAIN, doubts=(Doubt(Grade.VOID, "the feature bounds were taken from the data"),))
    assert str(broken).startswith("DOES NOT HOLD: the feature bounds were taken from the data.")
    assert not broken.holds


def test_seeded_noise_never_holds() -> None:
    seeded = replace(PLAIN, doubts=(SEEDED,))
    assert not seeded.holds
    assert str(seeded).startswith("DOES NOT HOLD")


def test_what_is_not_proven_to_the_last_bit_holds_and_says_so() -> None:
    floating = replace(PLAIN, doubts=(FLOATING_POINT,))
    assert (floating.holds, floating.proven_to_the_last_bit) == (True, False)
    assert str(floating).startswith(
        f"NOT PROVEN TO THE LAST BIT: {FLOATING_POINT.reason}. (1, 0.00034)-joint"
    )
    assert (PLAIN.proven_to_the_last_bit, "NOT PROVEN" in str(PLAIN)) == (True, False)
    both = replace(PLAIN, doubts=(FLOATING_POINT, SEEDED))
    assert (both.holds, both.proven_to_the_last_bit) == (False, False)
    assert 0 == str(both).index("DOES NOT HOLD") < str(both).index("NOT PROVEN TO THE LAST BIT")
    assert [doubt["grade"] for doubt in both.to_dict()["doubts"]] == ["not proven to the last bit", "void"]


def test_it_says_of_which_data_it_speaks() -> None:
    for text in (str(PLAIN), PLAIN.to_dict()["domain"]):
        for part in ("any other data that fit the codebook", "to the operator alone", "sends zeros"):
            assert part in text


def test_a_guarantee_of_an_older_version_is_read_with_its_doubts() -> None:
    old = {name: value for name, value in PLAIN.to_dict().items() if name not in ("doubts", "domain")}
    assert Guarantee.from_dict(old | {"caveats": []}) == PLAIN
    made = "INSECURE: floating-point noise, from a seed"
    read = Guarantee.from_dict(old | {"caveats": ["its bounds"], "noise": made})
    assert read.doubts == (Doubt(Grade.VOID, "its bounds"), SEEDED, FLOATING_POINT)


def test_printed_numbers_are_rounded_up() -> None:
    assert "(12.13, 0.00034)" in str(replace(PLAIN, epsilon=12.12001))
    assert "(0.1001, 0.0003401)" in str(replace(PLAIN, epsilon=0.10000001, delta=3.4000001e-4))


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 1e4, math.inf])
@pytest.mark.parametrize("other", [None, 0.3, math.inf])
def test_round_trip_through_strict_json(epsilon: float, other: float | None) -> None:
    before = replace(
        PLAIN, epsilon=epsilon, other_epsilon=other, doubts=(Doubt(Grade.VOID, "a"), FLOATING_POINT)
    )

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    values = json.loads(before.to_json(), parse_constant=refuse)
    assert Guarantee.from_dict(values) == before
    assert hash(Guarantee.from_dict(values)) == hash(before)


def test_bad_values_are_refused() -> None:
    with pytest.raises(InputError, match="epsilon must be at least 0"):
        replace(PLAIN, epsilon=math.nan)
    with pytest.raises(InputError, match="delta must be in"):
        replace(PLAIN, delta=2.0)
    with pytest.raises(InputError, match="relation must be"):
        replace(PLAIN, relation="add_remove")
    with pytest.raises(InputError, match="no field 'colour'"):
        Guarantee.from_dict({**PLAIN.to_dict(), "colour": "red"})
    with pytest.raises(InputError, match="needs all its fields"):
        Guarantee.from_dict({"epsilon": 1.0})
    for doubt in ({"grade": "some", "reason": "x"}, {"grade": "void"}, "x", {"grade": "void", "reason": ""}):
        with pytest.raises(InputError, match=r"grade must be|grade and a reason|reason of a doubt"):
            Guarantee.from_dict({**PLAIN.to_dict(), "doubts": [doubt]})


@given(mu=st.floats(0.01, 8), epsilon=st.floats(0, 12))
def test_no_gaussian_test_beats_the_detection_bound(mu: float, epsilon: float) -> None:
    from scipy.special import ndtr, ndtri

    delta = gaussian_dp.delta(mu, epsilon)
    power = float(ndtr(ndtri(0.05) + mu))  # the best test of N(0,1) against N(mu,1)
    assert power <= detection_bound(epsilon, delta) + 1e-12


def test_detection_bound_is_attained_by_randomised_response() -> None:
    epsilon = math.log(19)  # truth with probability .95: false alarms .05, hits .95
    assert detection_bound(epsilon, 0.0) == pytest.approx(0.95)
    assert np.all(np.diff([detection_bound(e, 1e-5) for e in np.linspace(0, 10, 50)]) >= 0)
