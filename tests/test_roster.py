"""Names of tasks: nothing is merged or told apart in silence, and a roster holds each name once."""

from __future__ import annotations

import datetime
import enum
import json
import unicodedata
import uuid
from collections import deque
from decimal import Decimal
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister import Tasks
from cloister.core.roster import LONGEST, GrowingRoster, Roster, task_ids, task_name
from cloister.engines.run import _joined
from cloister.errors import InputError

LARGE = 2**53
ONE = uuid.UUID(int=1)


class Kind(str, enum.Enum):  # noqa: UP042  (whose str() is not its text)
    elm = "Elm"


def objects(*values):
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["b", "a", "b"], ["b", "a", "b"]),
        (["nan", "b"], ["nan", "b"]),  # a word may be "nan"
        ([" Elm Street "], ["Elm Street"]),
        ([unicodedata.normalize("NFD", "Müller")], ["Müller"]),
        (["1", "01", "1.0", "l"], ["1", "01", "1.0", "l"]),
        (["Elm", "elm"], ["Elm", "elm"]),  # capitals tell names apart
        ([Kind.elm], ["Elm"]),
        ([ONE], [str(ONE)]),
        ([LARGE, LARGE + 1], [LARGE, LARGE + 1]),
        ([np.int8(3), 1], [3, 1]),
        ([2**64 - 1, 0], [2**64 - 1, 0]),
        (np.array([3.0, -0.0]), [3, 0]),
        ([7.0, LARGE - 1.0], [7, LARGE - 1]),
        ([Decimal(LARGE + 1), Decimal("7.00")], [LARGE + 1, 7]),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.array(["a", "b"], dtype=np.dtypes.StringDType()), ["a", "b"]),
        (range(3), [0, 1, 2]),
        (pd.Series([LARGE + 1, 3], dtype="Int64"), [LARGE + 1, 3]),
        (pd.Series(["a", "b"], dtype="category"), ["a", "b"]),
        (pd.Series(["a", "b"], dtype="string"), ["a", "b"]),
        (pl.Series(["a", "b"]), ["a", "b"]),
        (pl.Series(["a", "b"], dtype=pl.Categorical), ["a", "b"]),
        (pl.Series([LARGE, LARGE + 1]), [LARGE, LARGE + 1]),
        (pa.array(["a", "b"]), ["a", "b"]),
        (pa.chunked_array([[LARGE], [LARGE + 1]]), [LARGE, LARGE + 1]),
        ([], []),
    ],
)
def test_what_names_a_task(given, names):
    found = task_ids(given).tolist()
    assert found == names
    assert [type(name) for name in found] == [type(name) for name in names]
    assert task_ids(task_ids(given)).tolist() == names
    assert [task_name(value) for value in np.asarray(given, dtype=object)] == names or isinstance(
        given, pd.Series
    )


MIXED = [
    [1, "1"],
    [LARGE + 1, LARGE, 0.5],
    [1, 2.0],
    [True, 1],
    ["a", b"a"],
    [ONE, str(ONE)],
    deque([1, "1"]),
    objects(1, Decimal(1)),
]
OTHER = {
    "booleans": [[True, False], np.array([True, False]), pd.Series([True, False])],
    "bytes": [[b"a"], np.array([b"a"])],
    "date": [
        [datetime.date(2024, 1, 2)],
        np.array(["2024"], dtype="M8[D]"),
        pd.Series(pd.to_datetime(["2024"])),
    ],
    "tuple": [objects((1, 2)), pd.MultiIndex.from_tuples([(1, 2)])],
    "complex": [np.array([1j])],
    "decimals": [[Decimal("0.5")], [Decimal("Infinity")]],
}


@pytest.mark.parametrize("given", MIXED, ids=repr)
def test_ids_of_mixed_kinds_are_refused(given):
    with pytest.raises(InputError, match=r"all text or all whole numbers\. Got .* and .* in one list"):
        task_ids(given)


@pytest.mark.parametrize(("kind", "given"), [(kind, ids) for kind, all in OTHER.items() for ids in all])
def test_what_names_no_task_is_refused_with_its_kind(kind, given):
    with pytest.raises(
        InputError, match=rf"must be text or a whole number\. Got .*{kind}.*Write them as text"
    ):
        task_ids(given)


@pytest.mark.parametrize(
    "given",
    [
        np.array([2**60 + 1, 2**60 + 2, 7], dtype=float),
        [float(LARGE)],
        [0.5],
        [np.inf],
        np.array([2.0**24], dtype=np.float32),
        np.array([-(2.0**53)]),
    ],
    ids=repr,
)
def test_a_float_that_may_stand_for_several_whole_numbers_is_refused(given):
    with pytest.raises(InputError, match="whole and below"):
        task_ids(given)


@pytest.mark.parametrize("given", [[2**64], [-1, 2**63], [-(2**63) - 1]])
def test_whole_numbers_are_exact_or_refused(given):
    with pytest.raises(InputError, match=r"fit into 64 bits\. Got"):
        task_ids(given)


@pytest.mark.parametrize(
    "given",
    [
        ["a", None],
        [1, np.nan],
        pd.Series([1, None], dtype="Int64"),
        pd.Series(["a", None], dtype="string"),
        pd.Series(["a", None], dtype="category"),
        pa.array([1, None]),
        np.array(["2024", "NaT"], dtype="M8[D]"),
        np.ma.masked_array([1, 2], mask=[False, True]),
        [Decimal("NaN")],
    ],
)
def test_missing_ids_are_refused(given):
    with pytest.raises(InputError, match="must not be missing"):
        task_ids(given)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Elm", "Elm "),
        ("Elm", "\u00a0Elm"),
        ("Müller", unicodedata.normalize("NFD", "Müller")),
        ("\u212b", "\u00c5"),  # the sign of the unit is the letter
        ("Elm", "\ufeffElm"),
        ("Elm", "El\u200bm"),
    ],
)
@pytest.mark.parametrize(
    "make", [list, objects, np.array, pd.Series, pl.Series, deque], ids=lambda m: m.__name__
)
def test_one_name_in_two_spellings_is_refused_and_both_are_shown(make, first, second):
    made = make(first, second) if make is objects else make([first, second])
    with pytest.raises(InputError, match="spelled in one way") as caught:
        task_ids(made)
    shown = [part.split("'")[1] for part in str(caught.value).split(" and ")[:2]]
    assert shown[0] != shown[1]


SAME_TO_THE_EYE = {
    "wide letters": ("Oak 7", "\uff2f\uff41\uff4b\u3000\uff17"),
    "a ligature": ("Graffiti", "Gra\ufb03ti"),
    "a sharp s": ("Wei\u00df", "Weiss"),
    "a large sharp s": ("WEI\u1e9e", "WEISS"),
    "a space that breaks no line": ("Elm 3", "Elm\u00a03"),
    "a numeral": ("Ward IV", "Ward \u2163"),
    "another font": ("Elm", "\U0001d404\U0001d425\U0001d426"),
    "half as wide": ("\u30ab", "\uff76"),
    "several at once": ("Stra\u00dfe \ufb01", "\uff33trasse fi"),
}
DIFFERENT = [
    ("Elm", "elm"),
    ("Ward 2", "Ward\u00b2"),
    ("1", "\u2460"),
    ("Muller", "M\u00fcller"),
    ("Ward 12", "Ward \u00bd"),
]


@pytest.mark.parametrize("which", SAME_TO_THE_EYE)
def test_other_forms_of_letters_are_no_other_names(which, tmp_path):
    """One party would count as two; what earlier versions wrote with such names is still read."""
    names = SAME_TO_THE_EYE[which]
    growing = GrowingRoster()
    growing.add(names[0])
    for refused in (
        lambda: task_ids(names),
        lambda: Roster(names),
        lambda: Tasks.from_arrays(np.zeros((2, 1)), np.zeros(2), names),
        lambda: growing.add(names[1]),
    ):
        with pytest.raises(InputError, match="A task must be spelled in one way"):
            refused()
    assert len(task_ids(names, written=True)) == 2
    growing.add(names[1], written=True)
    roster = Roster.written(names)
    assert len(set(roster.names)) == len(set(growing.names)) == 2
    (tmp_path / "roster").write_text("".join(json.dumps(name) + "\n" for name in roster.names))
    assert _joined(tmp_path / "roster") == roster


@pytest.mark.parametrize("names", DIFFERENT)
def test_names_that_look_different_are_different(names):
    assert len(task_ids(names)) == 2


@pytest.mark.parametrize(
    "name",
    [
        "victim\0",
        "a\0b",
        "\0",
        "a\nb",
        "Elm\n",
        "\ud800",
        "a\x7f",
        "a\u2028b",
        "",
        " ",
        "\u200b",
        "x" * (LONGEST + 1),
    ],
)
@pytest.mark.parametrize("make", [list, objects, partial(pd.Series, dtype=object), deque])
def test_names_that_files_or_arrays_cannot_hold_are_refused(make, name):
    made = make("victim", name) if make is objects else make(["victim", name])
    with pytest.raises(InputError, match="A task's name must"):
        task_ids(made)


@given(st.lists(st.text(max_size=6), min_size=1, max_size=4))
def test_every_accepted_name_is_encodable_and_its_own_normal_form(given):
    try:
        names = task_ids(given).tolist()
    except InputError:
        return
    assert len(names) == len(given)
    assert len(set(names)) == len(set(given))  # nothing was merged
    assert all(unicodedata.is_normalized("NFC", name) and name == name.strip() for name in names)
    assert task_ids(names).tolist() == names
    assert json.loads(json.dumps(names, ensure_ascii=False).encode()) == names
    assert "\n".join(names).encode().decode().split("\n") == names  # one a line of a file


@pytest.mark.parametrize("ids", [[[1, 2]], "Elm", 7, {"Elm"}])
def test_ids_are_one_list(ids):
    with pytest.raises(InputError, match="one-dimensional"):
        task_ids(ids)


def test_a_roster_is_public_frozen_and_has_each_name_once():
    roster = Roster(["Oak", "Elm "])
    assert roster == Roster(("Oak", "Elm")) == Roster(np.array(["Oak", "Elm"]))
    assert hash(roster) == hash(Roster(("Oak", "Elm")))
    assert (len(roster), list(roster), roster.position(" Oak")) == (2, ["Oak", "Elm"], 0)
    assert repr(roster) == "Roster(2 tasks)"
    with pytest.raises(InputError, match=r"There is no task 'Ash' here"):
        roster.position("Ash")
    with pytest.raises(InputError, match=r"There is no task '1' here"):
        Roster([1]).position("1")
    for twice in (["a", "b", "a"], [1, 1.0][:1] * 2, [ONE, ONE]):
        with pytest.raises(InputError, match=r"may be in a run once: .* 2 times"):
            Roster(twice)


def test_a_roster_s_fingerprint_is_of_its_names_and_order_alone():
    lists = [["a", "b"], ["b", "a"], ["a", "b", "c"], ["a, b"], ['a", "b'], [1, 2], ["1", "2"], [12], []]
    assert len({Roster(names).fingerprint for names in lists}) == len(lists)
    assert Roster([1, 2]).fingerprint == Roster(np.array([1.0, 2.0])).fingerprint
