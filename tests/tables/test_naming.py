"""The public roster of a codebook, and its words: whom a table may name, and what is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cloister import Codebook, SharedPriorRegressor
from cloister.errors import InputError
from cloister.tables.column_types import Numeric
from cloister.tables.naming import Naming

TOWNS = ("Ahlen Nord", "Beckum", "Coesfeld")
NAMING = Naming(TOWNS, "clinic", "patient")
BOOK = Codebook((Numeric("x", 0, 1),), Numeric("y", 0, 1), "town", naming=NAMING)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (
            [*TOWNS, "ahlen nord", "Dülmen"],
            r"^Every clinic of a\.csv must be .*'Dülmen', and 1 more\. Respell it; or, .*\.$",
        ),
        ([*TOWNS, "ahlen nord"], r"Got 'ahlen nord' \(did you mean 'Ahlen Nord'\?\)\. Respell"),
        (TOWNS[1:], r"must have a patient in a\.csv\. 1 of 3 have none: 'Ahlen Nord'\. Add"),
    ],
)
def test_tasks_that_are_not_the_rosters_are_refused(names: list[str], sentence: str) -> None:
    assert NAMING.fault(TOWNS[::-1], "a.csv") is None
    assert Naming().fault(names, "a.csv") is None
    with pytest.raises(InputError, match=sentence):
        NAMING.check(names, "a.csv")


def test_an_estimator_refuses_before_it_plans_or_charges() -> None:
    rng = np.random.default_rng(0)
    town = np.repeat(["Ahlen", *TOWNS[1:]], 5)
    table = {"town": town, "x": rng.random(15)}
    model = SharedPriorRegressor("town", bounds=BOOK, random_state=0)
    with pytest.raises(InputError, match="Every clinic of the table must be on the codebook's roster"):
        model.fit(table, rng.random(15))
    assert not hasattr(model, "plan_")
    table["town"] = np.repeat(TOWNS, 5)
    fitted = model.fit(table, rng.random(15))
    assert fitted.plan_.n_tasks == len(TOWNS)
    joined = {"town": np.array(["Dülmen"]), "x": np.array([0.5])}
    assert np.isfinite(fitted.predict(joined)).all()  # whoever comes later is served from the board


def test_a_file_keeps_the_names_and_the_words(tmp_path: Path) -> None:
    BOOK.save(tmp_path / "book.toml")
    assert Codebook.load(tmp_path / "book.toml") == BOOK == Codebook.from_dict(BOOK.to_dict())
    assert not {*Naming.KEYS} & set(Codebook((Numeric("x", 0, 1),), Numeric("y", 0, 1)).to_dict())
    assert Naming.from_keys({"roster": [3, 1, 2]}).roster == ("3", "1", "2")


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"roster": []}, "roster must be a list of the names of all tasks"),
        ({"roster": ["Ahlen"]}, "roster must be a list of the names of all tasks"),
        ({"roster": "Ahlen, Beckum"}, "roster must be a list of the names of all tasks"),
        ({"roster": ["Ahlen", "Ahlen"]}, "^roster in the codebook: "),
        ({"roster": ["Ahlen", ["Beckum"]]}, "^roster in the codebook: "),
        ({"task_noun": " "}, "task_noun must be a word in the singular"),
        ({"row_noun": 3}, "row_noun must be a word in the singular"),
        ({"row_noun": "a\nb"}, "row_noun must be a word in the singular"),
    ],
)
def test_what_is_no_name_or_word_is_refused(keys: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Naming.from_keys(keys)


@pytest.mark.parametrize(
    ("noun", "two"), [("clinic", "clinics"), ("county", "counties"), ("class", "classes"), ("day", "days")]
)
def test_words_are_counted(noun: str, two: str) -> None:
    assert (Naming(task_noun=noun).tasks(1), Naming(task_noun=noun).tasks(2)) == (f"1 {noun}", f"2 {two}")


PROMISE = "each of the 9 tasks, with all its rows. A person whose rows are in one task only; a record of it"


@pytest.mark.parametrize(
    ("task", "row"),
    [("person", "row"), ("Records", "visit"), ("row", "row"), ("clinic", "clinic"), ("clinic", "a, b"),
     ("clinic and everybody in it", "row"), ("group", "row"), ("clinic; nothing", "row"),
     ("nobody else", "row")],
)  # fmt: skip
def test_no_name_changes_whom_a_guarantee_is_for(task: str, row: str) -> None:
    assert Naming((), task, row).words(PROMISE) == PROMISE


def test_a_guarantee_takes_up_words_but_not_in_the_name_of_an_account() -> None:
    told = Naming((), "care home", "record").words(PROMISE)
    assert told == PROMISE.replace("task", "care home").replace("its rows", "its records")
    for name in ("a task", "O'Hara's tasks"):
        assert NAMING.words(f"a task, to the account of {name!r}") == f"a clinic, to the account of {name!r}"
