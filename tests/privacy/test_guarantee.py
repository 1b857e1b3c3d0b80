"""The guarantee as a value: what it says, and that it survives a file."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from cloister.errors import InputError
from cloister.privacy.caveats import FLOATING_POINT, SEEDED, Caveat, Grade
from cloister.privacy.guarantee import FORMAT, AllRuns, Guarantee, NoiseMade
from cloister.privacy.randomness import Origin
from cloister.privacy.tradeoff import Envelope, GaussianCurve
from cloister.privacy.trust import Trust

PLAIN = Guarantee(
    epsilon=1.0,
    delta=3.4e-4,
    relation="replace",
    n_tasks=205,
    accountant="exact Gaussian DP",
    participation="every task takes part in every round",
    noise="floating point, system entropy",
    other_epsilon=0.46,
    curve=GaussianCurve(0.3385),
)


def test_it_says_everything_an_officer_needs() -> None:
    four, technical = str(PLAIN).split("\n\n")
    verdict, *lines = four.splitlines()
    assert verdict == "This guarantee holds."
    labels = [line.partition(":")[0] for line in lines]
    assert labels == ["Who is protected", "Against whom", "How strongly", "Not covered"]
    for part in (
        "each of the 205 tasks, with all its rows",
        "a pupil of one school, is protected from all other tasks, just as their task is, but not",
        "collude",
        "5 % false alarms they detect it in at most 9.58 % of cases",
        "rows in 2 tasks it is 16.7 %, in 3 tasks it is 26.5 %",
        "trusted curator sees each clipped message",
        "nothing is claimed against the curator",
        "if all rows are in one table or process, its operator",
        "for this run alone, one fit, and for the rows as they were given to it",
    ):
        assert part in four, part
    for part in (
        "(1, 0.00034)-joint differential privacy",
        "a factor of at most 2.72 (e to the power of epsilon = 1)",
        "except with a probability of at most 0.00034 (delta)",
        "exact Gaussian DP with mu = 0.3385",
        "replace (the two worlds differ in all data of one task)",
        "zero_out (in one of the two worlds one task says only zeros) the same noise has epsilon = 0.46",
        "every task takes part in every round",
        "system entropy",
    ):
        assert part in technical, part
    assert PLAIN.holds


@pytest.mark.parametrize(("mu", "loud"), [(2.4, False), (2.6, True), (50.0, True)])
def test_a_guarantee_that_hardly_protects_says_so_in_capitals(mu: float, loud: bool) -> None:
    """Under GDP a test with 5 % false alarms detects Phi(mu - 1.645): 80 % from mu = 2.49 on."""
    weak = replace(PLAIN, epsilon=1000.0, curve=GaussianCurve(mu))
    assert weak.holds
    assert ("\nHARDLY ANY PROTECTION: a test with 5 % false alarms may detect" in str(weak)) is loud


def test_noise_that_is_keyed_is_explained_where_it_is_named() -> None:
    keyed = replace(PLAIN, noise="noise from a cryptographic generator keyed by the operating system")
    assert "the key is a secret that the computer draws" in str(keyed)
    assert "the key is a secret" not in str(PLAIN)
    at_home = replace(keyed, noise=Origin.SYSTEM.describe(Trust.silo().kind("noise")))
    assert "each task's key is a secret that its own computer draws, and without it" in str(at_home)
    on_one = NoiseMade(Trust.silo().kind("noise"), Origin.SYSTEM, together=True)
    assert "the key is a secret that the computer draws" in str(replace(keyed, noise=str(on_one)))


def test_the_words_are_the_same_for_machines() -> None:
    said = PLAIN.to_dict()["statement"]
    assert said["verdict"] == "This guarantee holds."
    lines = str(PLAIN).splitlines()
    assert [f"{key}: {said[key]}" for key in ("who is protected", "against whom")] == [
        line[0].lower() + line[1:] for line in lines[1:3]
    ]
    assert list(said["technically"]) == [
        *("privacy", "curve", "relation", "domain", "participation", "noise", "accounting")
    ]


def test_silence_is_two_steps_from_other_data() -> None:
    """Under zero_out a person's rows change by way of silence: the rate is that of a group of two."""
    silent = replace(PLAIN, relation="zero_out")
    assert "stays silent. With 5 % false alarms they detect it in at most 9.58 %" in str(silent)
    assert "rows in 1 task it is 16.7 %, in 2 tasks it is 38.6 %" in str(silent)


def test_what_is_proven_beyond_epsilon_and_delta() -> None:
    assert PLAIN.mu == 0.3385
    bare = replace(PLAIN, curve=None)
    assert bare.mu is None
    assert bare.detection() == pytest.approx(math.e * 0.05 + 3.4e-4)
    assert "no more is proven than epsilon and delta say" in str(bare)
    assert replace(PLAIN, curve=None, epsilon=math.inf).detection() == 1.0
    points = replace(PLAIN, curve=Envelope(((0.0, 0.11), (1.0, 3.4e-4))))
    assert "many pairs of epsilon and delta that all hold" in str(points)
    assert points.detection(0.3) == pytest.approx(0.41)


def test_a_ledger_speaks_of_all_runs() -> None:
    together = AllRuns("schools", 3, "replace", spent=0.6, budget=1.0)
    charged = replace(PLAIN, all_runs=together)
    assert "Over the 3 runs charged so far to the account of 'schools'" in str(charged)
    assert "at most 14.9 % of cases if none was chosen by what another showed" in str(charged)
    assert "at most 26 % over all runs that will ever be charged to it" in str(charged)
    assert "against those whom its runs are priced against, a test detects" in str(together)
    assert "against everybody else, a test detects" in str(replace(together, adversary="everybody else"))
    assert Guarantee.from_dict(json.loads(charged.to_json())) == charged
    void = replace(PLAIN, all_runs=replace(together, doubts=(SEEDED,)))
    assert "nothing can be promised, because of one of them the noise is drawn from a seed" in str(void)
    assert Guarantee.from_dict(json.loads(void.to_json())) == void
    assert void.all_runs is not None
    assert void.all_runs.detection() == void.all_runs.detection(0.01, tasks=2) == 1.0
    with pytest.raises(InputError, match="within the budget"):
        replace(together, spent=1.1)
    with pytest.raises(InputError, match="needs all its fields"):
        AllRuns.from_dict({"population": "schools"})


def test_a_doubt_of_another_run_is_read_before_the_lines() -> None:
    together = AllRuns("schools", 3, "replace", 0.6, 1.0, (FLOATING_POINT,))
    assert str(together).endswith(
        "; this is not proven to the last bit, because of one of them " + FLOATING_POINT.reason
    )
    assert together.detection() == replace(together, doubts=()).detection() < 1  # it holds all the same
    charged = replace(PLAIN, all_runs=together)
    (warning,) = charged.statement.warnings
    assert warning.startswith("NOT PROVEN TO THE LAST BIT OVER ALL RUNS")
    assert FLOATING_POINT.reason in warning
    (warning,) = replace(charged, doubts=(FLOATING_POINT,)).statement.warnings  # its own, said once
    assert warning.startswith("NOT PROVEN TO THE LAST BIT: ")
    (warning,) = replace(PLAIN, all_runs=replace(together, doubts=(SEEDED,))).statement.warnings
    assert warning.startswith("NOTHING CAN BE PROMISED OVER ALL RUNS")


def test_not_private() -> None:
    loud = replace(PLAIN, epsilon=math.inf, other_epsilon=math.inf)
    assert str(loud).startswith("NOT PRIVATE")
    assert not loud.holds
    assert "joint differential privacy" not in str(loud)


def test_nothing_leaves() -> None:
    silent = replace(PLAIN, epsilon=0.0, delta=0.0, other_epsilon=0.0)
    assert str(silent).startswith("This guarantee holds.\nNothing leaves any task")
    assert silent.holds


def test_a_caveat_comes_first() -> None:
    broken = replace(PLAIN, doubts=(Caveat(Grade.VOID, "the feature bounds were taken from the data"),))
    assert str(broken).startswith("DOES NOT HOLD: the feature bounds were taken from the data.")
    assert not broken.holds


def test_seeded_noise_never_holds() -> None:
    seeded = replace(PLAIN, doubts=(SEEDED,))
    assert not seeded.holds
    assert str(seeded).startswith("DOES NOT HOLD")


def test_what_is_not_proven_to_the_last_bit_holds_and_says_so() -> None:
    floating = replace(PLAIN, doubts=(FLOATING_POINT,))
    assert (floating.holds, floating.proven_to_the_last_bit) == (True, False)
    first, second, third, *_ = str(floating).splitlines()
    assert (first, second) == (
        "This guarantee holds.",
        f"NOT PROVEN TO THE LAST BIT: {FLOATING_POINT.reason}.",
    )
    assert third.startswith("Who is protected")
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
    new = {"doubts", "domain", "curve", "scope", "all_runs", "detection", "statement", "format"}
    old = {name: value for name, value in PLAIN.to_dict().items() if name not in new}
    bare = replace(PLAIN, curve=None)
    assert Guarantee.from_dict(old | {"caveats": []}) == bare
    second = {"format": "cloister guarantee 2", "doubts": [], "domain": PLAIN.domain}
    assert Guarantee.from_dict(old | second) == bare
    assert FORMAT == "cloister guarantee 4"
    made = "INSECURE: floating-point noise, from a seed"
    read = Guarantee.from_dict(old | {"caveats": ["its bounds"], "noise": made})
    assert read.doubts == (Caveat(Grade.VOID, "its bounds"), SEEDED, FLOATING_POINT)


def test_printed_numbers_are_rounded_up() -> None:
    assert "(12.13, 0.00034)" in str(replace(PLAIN, epsilon=12.12001))
    assert "(0.1001, 0.0003401)" in str(replace(PLAIN, epsilon=0.10000001, delta=3.4000001e-4))


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 1e4, math.inf])
@pytest.mark.parametrize("other", [None, 0.3, math.inf])
def test_round_trip_through_strict_json(epsilon: float, other: float | None) -> None:
    before = replace(
        PLAIN, epsilon=epsilon, other_epsilon=other, doubts=(Caveat(Grade.VOID, "a"), FLOATING_POINT)
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
    for curve in ({"mu": -1.0}, {"mu": "x"}, {"points": [[1.0]]}, {"points": [[1.0, 2.0]]}, {"nu": 1.0}):
        with pytest.raises(InputError, match=r"mu must be|A point of a curve|A curve must have"):
            Guarantee.from_dict({**PLAIN.to_dict(), "curve": curve})
    for doubt in ({"grade": "some", "reason": "x"}, {"grade": "void"}, "x", {"grade": "void", "reason": ""}):
        with pytest.raises(InputError, match=r"grade must be|grade and a reason|reason of a doubt"):
            Guarantee.from_dict({**PLAIN.to_dict(), "doubts": [doubt]})
