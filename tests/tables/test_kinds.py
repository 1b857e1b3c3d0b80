"""Kinds of columns: no row is longer than one, whatever is in it; units, names and files stay right."""

from __future__ import annotations

import itertools
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.app.task_model import TaskModel
from cloister.errors import InputError, PrivateDataError
from cloister.tables.codebook import Codebook
from cloister.tables.column_types import Categorical, Numeric
from cloister.tables.dates import Date
from cloister.tables.feature import Feature
from cloister.tables.reading import Reading
from cloister.tables.rows import read_rows, text_columns
from cloister.tables.transforms import Cuts, Monotone, Spline

START, END = date(2020, 1, 1), date(2026, 12, 31)
TRANSFORMS = [
    Monotone(),
    Monotone("log"),
    Monotone("log1p"),
    Monotone("sqrt"),
    Cuts((3, 5)),
    Spline((2, 4, 9)),
]
KINDS: list[Feature] = [
    *(Numeric("n", 1, 10, shape, fill) for shape in TRANSFORMS for fill in (None, 1, 5.5, 10)),
    Categorical("c", ["a", "b", "c"]),
    Categorical("c", ["a", "b", "c"], missing="b"),
    Categorical("c", ["a", "b", "c"], missing="unknown"),
    Categorical("c", ["a", "b", "c"], ordinal=True),
    Categorical("c", ["a", "b", "c"], ordinal=True, missing="unknown"),
    Categorical("c", [False, True], missing="unknown"),
    Date("d", START, END),
    Date("d", START, END, ("days", "weekday", "month")),
    Date("d", START, END, ("days", "weekday", "month"), date(2023, 5, 6)),
    Date("d", datetime(2020, 1, 1), datetime(2020, 1, 2, 12), ("weekday",), datetime(2020, 1, 1, 7)),
]
NUMBERS = [-1e9, 1.0, 2.0, 3.0, 4.0, 5.5, 7.0, 9.0, 10.0, 1e9]
DAYS = [START - timedelta(700), *(END - timedelta(days) for days in range(-150, 20)), START]


def cells(part: Feature) -> list[object]:
    """Every kind of cell that a column may have, those beyond its bounds too."""
    own = {Numeric: NUMBERS, Date: DAYS}.get(type(part)) or [*getattr(part, "levels", ())]
    return [*own, None] if part.fill is not None else [*own]


def any_cell(part: Feature) -> st.SearchStrategy[object]:
    more = {Numeric: st.floats(allow_nan=False, allow_infinity=False), Date: st.dates()}
    return st.sampled_from(cells(part)) | more.get(type(part), st.nothing())


def filled(values: list[object]) -> np.ndarray:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


@pytest.mark.parametrize("part", KINDS, ids=repr)
def test_a_block_is_as_long_as_its_bound_and_no_longer(part: Feature) -> None:
    book = Codebook((part,), Numeric("y", 0, 1))
    block = book.encode({part.name: filled(cells(part))})[:, 1:] * book.row_scale
    longest = (block**2).sum(axis=1).max()
    assert longest == pytest.approx(part.block_bound(), rel=1e-12)
    assert block.shape[1] == len(part.block_names()) == book.width - 1


@st.composite
def books(draw: st.DrawFn) -> Codebook:
    parts = []
    for i, part in enumerate(draw(st.lists(st.sampled_from(KINDS), min_size=2, max_size=4))):
        parts.append(replace(part, name=f"f{i}"))
    pairs = list(itertools.combinations([part.name for part in parts], 2))
    return Codebook(tuple(parts), Numeric("y", -3, 5), interactions=draw(st.sets(st.sampled_from(pairs))))


@settings(max_examples=60)
@given(books(), st.data())
def test_no_row_is_longer_than_one_and_units_are_the_users(book: Codebook, data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 4))
    table = {
        part.name: filled(data.draw(st.lists(any_cell(part), min_size=rows, max_size=rows)))
        for part in book.features
    }
    encoded = book.encode(table)
    assert encoded.shape == (rows, book.width)
    assert (np.linalg.norm(encoded, axis=1) <= 1 + 1e-12).all()
    weights = np.random.default_rng(0).standard_normal((2, book.width))
    coef, intercept = book.to_user_units(weights)
    direct = book.decode_target(weights @ encoded.T)
    units = book.user_columns(table)
    size = np.abs(coef) @ np.abs(units).T + np.abs(intercept)[:, None]
    assert (np.abs(intercept[:, None] + coef @ units.T - direct) <= 1e-12 * (1 + size)).all()


@settings(max_examples=40)
@given(books())
def test_some_row_is_as_long_as_one(book: Codebook) -> None:
    worst = {}
    for part in book.features:
        alone = Codebook((part,), Numeric("y", 0, 1)).encode({part.name: filled(cells(part))})
        worst[part.name] = filled([cells(part)[(alone**2).sum(axis=1).argmax()]])
    assert np.linalg.norm(book.encode(worst)) == pytest.approx(1.0, rel=1e-12)


@settings(max_examples=25)
@given(books())
def test_files_and_dictionaries_give_the_codebook_back(tmp_path_factory, book: Codebook) -> None:
    file = tmp_path_factory.getbasetemp() / "book.toml"
    book.save(file)
    assert Codebook.load(file) == book
    assert Codebook.from_dict(json.loads(json.dumps(book.to_dict()))) == book


def test_names_of_columns() -> None:
    book = Codebook(
        (
            Numeric("income", 1, 1e6, Monotone("log"), 1e4),
            Numeric("age", 0, 120, Cuts((18, 65))),
            Categorical("sex", ["F", "M"]),
            Date("start", START, END, ("month",)),
        ),
        Numeric("y", 0, 1),
        interactions=(("income", "sex"),),
    )
    assert book.column_names[:5] == ("log(income)", "income[missing]", "age[0,18)", "age[65,120]", "sex[M]")
    assert book.column_names[5:7] == ("start[Feb]", "start[Mar]")
    assert book.column_names[-2:] == ("log(income):sex[M]", "income[missing]:sex[M]")


def test_coefficients_of_products_are_those_of_a_plain_regression() -> None:
    """Least squares on encoded rows, turned to user units, is least squares on the user's own columns."""
    rng = np.random.default_rng(0)
    table = {"age": rng.uniform(18, 80, 60), "sex": rng.choice(["F", "M"], 60), "pay": rng.uniform(1, 9, 60)}
    parts = (Numeric("age", 0, 100), Categorical("sex", ["F", "M"]), Numeric("pay", 1, 10, Monotone("log")))
    book = Codebook(parts, Numeric("y", 0, 50), interactions=(("age", "sex"), ("age", "pay")))
    y = rng.uniform(10, 40, 60)
    coef, intercept = book.to_user_units(np.linalg.lstsq(book.encode(table), book.encode_target(y))[0])
    m, age, pay = table["sex"] == "M", table["age"], np.log(table["pay"])
    plain = np.linalg.lstsq(np.column_stack([np.ones(60), age, m, pay, age * m, age * pay]), y)[0]
    np.testing.assert_allclose([intercept, *coef], plain, rtol=1e-8)


def test_what_needs_no_new_key_is_written_in_the_first_format(tmp_path: Path) -> None:
    old = Codebook((Numeric("a", 0, 1), Categorical("b", [False, True])), Numeric("y", 0, 1), "school")
    old.save(tmp_path / "old.toml")
    head = 'format = "cloister codebook 1"\ntask = "school"\n\n[target]\nname = "y"\n'
    bounds = "bounds = [\n    0.0,\n    1.0,\n]\n\n"
    tables = f"[features.a]\n{bounds}[features.b]\nlevels = [\n    false,\n    true,\n]\n"
    assert (tmp_path / "old.toml").read_text() == head + bounds + tables
    for number, part in enumerate(part for part in KINDS[1:] if part not in (Numeric("n", 1, 10), KINDS[24])):
        Codebook((part,), Numeric("y", 0, 1)).save(tmp_path / f"{number}.toml")
        assert 'format = "cloister codebook 2"' in (tmp_path / f"{number}.toml").read_text()


def test_dates_are_dates_however_they_come() -> None:
    day = Date("d", START, END, ("days", "weekday"))
    german = Date("d", START, END, ("days", "weekday"), spelling="%d.%m.%Y")
    ways = [
        (day, np.array(["2024-02-29"], dtype="M8[D]")),
        (day, np.array(["2024-02-29T23:59"], dtype="M8[ns]")),
        (day, np.array([date(2024, 2, 29)], dtype=object)),
        (day, np.array([datetime(2024, 2, 29, 8)], dtype=object)),
        (day, np.array(["2024-02-29"])),
        (day, np.array([" 2024-02-29T10:00:00 "])),
        (german, np.array(["29.02.2024"])),
        (german, np.array(["2024-02-29"], dtype="M8[D]")),
        (german, np.array(["2024-02-29"])),
    ]
    expected = [(date(2024, 2, 29) - START).days, 0, 0, 1, 0, 0, 0]  # a Thursday
    for part, column in ways:
        book = Codebook((part,), Numeric("y", 0, 1))
        assert book.user_columns({"d": column}).tolist() == [expected]
    for cell in ("29.02.2024", "2024-02-30", 45000.0, "2024-02-29T10:00+01:00"):
        with pytest.raises(InputError, match="must hold dates such as 2024-05-31, without a time zone"):
            Codebook((day,), Numeric("y", 0, 1)).encode({"d": filled([cell])})


@pytest.mark.parametrize(
    "cell", [True, 1, 1.0, "true", "True", "TRUE", " yes", "Y", "t", "1", "1.0", np.True_]
)
def test_booleans_are_booleans_however_they_come(cell: object) -> None:
    book = Codebook((Categorical("b", [False, True], missing="unknown"),), Categorical("y", [False, True]))
    negative = {bool: False, str: "no", np.bool_: np.False_}.get(type(cell), 0)
    column = filled([cell, negative, None, "NA"])
    assert book.user_columns({"b": column}).tolist() == [[1, 0], [0, 0], [0, 1], [0, 1]]
    assert book.encode_target(filled([cell, negative])).tolist() == [1, 0]
    assert book.decode_target([1, 0]).tolist() == [True, False]
    with pytest.raises(InputError, match=r"must hold levels that the codebook lists \(False, True\)"):
        book.encode({"b": filled([2])})


def test_dates_of_digits_in_a_file_are_no_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("d,y\n05062024,1\n")
    book = Codebook((Date("d", START, END, spelling="%d%m%Y"),), Numeric("y", 0, 1))
    rows = read_rows(tmp_path / "a.csv", book, target=True)
    np.testing.assert_array_equal(rows.X, book.encode({"d": [date(2024, 6, 5)]}))


def test_levels_are_what_is_written_and_missing_words_may_be_levels() -> None:
    codes = Categorical("c", [1, 2, 3])
    for column in ([2, 3], [2.0, 3.0], ["2", "3.0"], filled([2, " 3"])):
        assert codes.read(np.asarray(column)).values.tolist() == [1, 2]
        assert Categorical("c", [1.0, 2.0, np.int64(3)]).read(np.asarray(column)).values.tolist() == [1, 2]
    assert Categorical("c", ["1", "2"]).read(np.array([2, 1])).values.tolist() == [1, 0]
    assert Categorical("c", ["1", "2"]).read(np.array([2, np.nan])).missing.tolist() == [False, True]
    country = Categorical("c", ["DE", "NA"], missing="DE")
    found = country.read(filled(["NA", "n/a", "", "DE "]))
    assert found.values[[0, 3]].tolist() == [1, 0]
    assert found.missing.tolist() == [False, True, True, False]


def test_numbers_are_numbers_however_they_come() -> None:
    column = filled(
        [
            *(1, "2", " 3.5 ", Decimal("4.5"), np.float32(5), True, "n/a", None),
            *("1_000", "x", 10**400, Decimal("sNaN")),
        ]
    )
    found = Numeric("n", 0, 10).read(column)
    assert found.values[:6].tolist() == [1, 2, 3.5, 4.5, 5, 1]
    assert found.missing.tolist() == [False] * 6 + [True] * 2 + [False] * 4
    assert found.wrong.tolist() == [False] * 8 + [True] * 4
    assert Categorical("c", ["a", "b"]).read(column[-1:]).missing.all()


def test_ranks_and_missing_ranks() -> None:
    book = Codebook((Categorical("size", ["S", "M", "L"], True, "unknown"),), Numeric("y", 0, 1))
    assert book.column_names == ("size", "size[unknown]")
    assert book.user_columns({"size": filled(["S", "L", None])}).tolist() == [[0, 0], [2, 0], [1, 1]]


def test_ranges_of_dates_however_they_are_written() -> None:
    pandas = pytest.importorskip("pandas")
    for low, high in ((START, END), ("2020-01-01", "2026-12-31")):
        book = Codebook.from_mapping({"d": (low, high), "y": (0, 1)}, ["d"])
        assert book.features == (Date("d", START, END),)
    times = (pandas.Timestamp(START), pandas.Timestamp(END))
    part = Codebook.from_mapping({"d": times, "y": (0, 1)}, ["d"]).features[0]
    assert part == Date("d", datetime(2020, 1, 1), datetime(2026, 12, 31))
    assert type(part.low) is datetime


def test_the_codebook_of_the_page_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "codebook.md").read_text(encoding="utf-8")
    book = Codebook.from_dict(tomllib.loads(page.partition("```toml\n")[2].partition("```")[0]))
    shown = {"gender[M]", "free_meals[True]", "log(household_income)", "books_at_home", "enrolled[Feb]"}
    assert {*shown, "age:gender[M]"} <= set(book.column_names)


SPECS = {
    "transform": (
        {"bounds": [0, 1], "transform": "log"},
        "log of 'a' must be a finite number",
    ),
    "word": ({"bounds": [0, 1], "transform": "exp"}, "must be one of log, log1p, sqrt. Got 'exp'"),
    "two shapes": (
        {"bounds": [0, 9], "cuts": [3], "knots": [4]},
        "must have one of transform, cuts",
    ),
    "cuts": ({"bounds": [0, 9], "cuts": [3, 9]}, "cuts of 'a' must be numbers between its bounds 0 and 9"),
    "no knots": ({"bounds": [0, 9], "knots": []}, "knots of 'a' must be numbers between its bounds 0 and 9"),
    "close knots": (
        {"bounds": [0, 4e-310], "knots": [1e-310, 2e-310]},
        "knots of 'a' must be so far apart",
    ),
    "text cuts": ({"bounds": [0, 9], "cuts": ["x"]}, "cuts of 'a' must be a list of numbers"),
    "fill": ({"bounds": [0, 9], "missing": 10}, "missing of 'a' must be a number within"),
    "no fill": (
        {"bounds": [0, 9], "missing": True},
        "missing of 'a' must be a number within",
    ),
    "level": ({"levels": ["a", "b"], "missing": []}, "missing of 'a' must be a level, listed or not"),
    "ordinal": ({"levels": ["a", "b"], "ordinal": True}, "ordinal of 'a' must be true or false"),
    "alias of nothing": ({"levels": ["a", "b"], "aliases": {"x": "c"}}, "aliases of 'a' must be other words"),
    "alias of itself": ({"levels": ["a", "b"], "aliases": {"b": "a"}}, "aliases of 'a' must be other words"),
    "capitals": (
        {"levels": ["a", "A"], "ignore_case": True},
        "levels and aliases of 'a' must differ in more than capitals",
    ),
    "other key": (
        {"levels": ["a", "b"], "knots": [1]},
        "may also have ordinal, missing, aliases, ignore_case. Got knots",
    ),
    "dates": ({"bounds": ["2021-01-01", "2020-01-01"]}, "bounds of 'a' must be two dates"),
    "mixed": ({"bounds": ["2020-01-01", "2021-01-01T10:00"]}, "bounds of 'a' must be two dates"),
    "close times": (
        {"bounds": ["9999-01-01T00:00:00", "9999-01-01T00:00:00.000001"]},
        "bounds of 'a' must differ as numbers of days",
    ),
    "parts": (
        {"bounds": [START, END], "parts": ["year"]},
        "parts of 'a' must be some of days",
    ),
    "fill date": (
        {"bounds": [START, END], "missing": date(1999, 1, 1)},
        "missing of 'a' must be a date within",
    ),
}


@pytest.mark.parametrize("spec", SPECS)
def test_what_cannot_be_is_refused_in_a_sentence(spec: str) -> None:
    entry, sentence = SPECS[spec]
    with pytest.raises(InputError) as refusal:
        Codebook.from_mapping({"a": entry, "y": (0, 1)}, ["a"])
    assert sentence in str(refusal.value)


def test_targets_and_interactions_that_cannot_be() -> None:
    with pytest.raises(InputError, match=r"but a kind\. Got transform\. Of amounts .* kind = .positive"):
        Codebook.from_mapping({"a": (0, 1), "y": {"bounds": (1, 9), "transform": "log"}}, ["a"])
    with pytest.raises(InputError, match=r"nothing else\. Got dates"):
        Codebook.from_mapping({"a": (0, 1), "y": (START, END)}, ["a"])
    with pytest.raises(InputError, match=r"nothing else\. Got missing"):
        Codebook((Numeric("a", 0, 1),), Numeric("y", 0, 1, missing=0.5))
    for pairs in ([("a", "a")], [("a", "c")], [("a", "b"), ("b", "a")], [("a",)]):
        with pytest.raises(InputError, match="interactions must be pairs of different features, each once"):
            Codebook.from_mapping({"a": (0, 1), "b": (0, 1), "y": (0, 1)}, ["a", "b"], interactions=pairs)
    with pytest.raises(InputError, match="must have different names"):
        Codebook.from_mapping(
            {"a": {"bounds": (1, 2), "transform": "log"}, "log(a)": (0, 1), "y": (0, 1)}, ["a", "log(a)"]
        )


def test_check_counts_what_does_not_fit() -> None:
    book = Codebook(
        (Numeric("age", 0, 120, missing=40), Categorical("sex", ["F", "M"]), Date("start", START, END)),
        Numeric("y", 0, 10),
    )
    table = {
        "age": filled([-1, 130, 131, None, "old", "1e400", -math.inf]),
        "sex": filled(["F", "m", "m", "x", None, "F", "M"]),
        "start": ["2019-12-31", "2020-01-01", "", "2027-01-01", "soon", "2021-01-01", "2021-01-01"],
    }
    age, sex, start = book.check(table)
    assert (age.below, age.above, age.missing, age.wrong, age.refused) == (1, 2, 1, 3, 3)
    assert age.faults == (("out of range", 2), ("unreadable", 1))
    assert str(age).endswith("2 out of range, 1 unreadable (refused): 'old' (1), '1e400' (1), -inf (1)")
    assert (sex.clipped, sex.missing, sex.wrong, sex.refused) == (0, 1, 3, 4)
    assert sex.examples == (("'m'", 2), ("'x'", 1))
    assert (start.below, start.above, start.missing, start.wrong) == (1, 1, 1, 1)
    assert str(start) == (
        "start: 7 rows, 2 clipped (1 below 2020-01-01, 1 above 2026-12-31), 1 missing (refused), "
        "1 unreadable (refused): 'soon' (1)"
    )


@dataclass(frozen=True)
class Hour(Feature):
    """An hour of the day, on a circle."""

    name: str
    missing: float | None = None

    @classmethod
    def takes(cls, limits: Sequence[Any]) -> bool:
        return False

    @classmethod
    def from_entry(cls, name: str, limits: Sequence[Any], options: Mapping[str, Any]) -> Self:
        return cls(name, **options)

    def entry(self) -> dict[str, Any]:
        return {"hours": 24}

    @property
    def must(self) -> str:
        return "hold hours"

    @property
    def example(self) -> str:
        return "missing = 12"

    @property
    def fill(self) -> float | None:
        return self.missing

    def read(self, column: np.ndarray) -> Reading:
        values = np.array([math.nan if cell is None else float(cell) for cell in column])
        return Reading(values, np.isnan(values), (values < 0) | (values > 24))

    def fault(self, cell: object) -> str:
        return "out of range"

    def names(self) -> tuple[str, ...]:
        return f"{self.name}[cos]", f"{self.name}[sin]"

    def affine(self) -> tuple[tuple[float, float], ...]:
        return (0.0, 1.0), (0.0, 1.0)

    def columns(self, values: np.ndarray) -> np.ndarray:
        return np.column_stack([np.cos(values * math.tau / 24), np.sin(values * math.tau / 24)])


def test_a_type_of_column_answers_for_itself(tmp_path: Path) -> None:
    """One that the library does not know is encoded, bounded, checked and written: none asks which it is."""
    book = Codebook((Hour("at", missing=12.0),), Numeric("y", 0, 1))
    block = book.encode({"at": filled([0.0, 6.5, None])})[:, 1:] * book.row_scale
    np.testing.assert_allclose((block**2).sum(axis=1), [1.0, 1.0, book.features[0].block_bound()])
    assert book.column_names == ("at[cos]", "at[sin]", "at[missing]")
    assert str(book.check({"at": filled([25.0, 3.0])})[0]) == "at: 2 rows, 1 out of range (refused): 25.0 (1)"
    assert text_columns(book, target=True) == []
    book.save(tmp_path / "book.toml")
    assert 'format = "cloister codebook 2"' in (tmp_path / "book.toml").read_text()
    with pytest.raises(InputError, match="'at' is of type Hour, which no class of scikit-learn's own reads"):
        TaskModel.of("Elm", book, {"coef": np.zeros(4)}).to_sklearn()


def test_levels_are_read_as_people_write_them(tmp_path):
    """Aliases, capitals and words for an empty cell are public, and change nothing of what is encoded."""
    age = {"bounds": [0, 120], "missing": 40}
    plain = {"sex": ["F", "M"], "smokes": {"levels": [False, True], "missing": False}, "age": age}
    said = {
        "sex": {"levels": ["F", "M"], "aliases": {"w": "F", "weiblich": "F"}, "ignore_case": True},
        "smokes": {"levels": [False, True], "aliases": {"nein": False, "ja": True}, "missing": False},
        "age": age,
    }
    goal = {"y": {"levels": ["no", "yes"], "aliases": {"nein": "no"}}}
    book = replace(Codebook.from_mapping(said | goal, [*said], target="y"), empty=("?", "Unbekannt"))
    strict = Codebook.from_mapping(plain | {"y": ["no", "yes"]}, [*plain], target="y")
    written = {
        "sex": ["W", "weiblich", "m", "F"],
        "smokes": ["ja", "nein", "?", "yes"],
        "age": ["50", "unbekannt", "?", "7"],
    }
    meant = {"sex": ["F", "F", "M", "F"], "smokes": ["yes", "no", "", "yes"], "age": ["50", "", "", "7"]}
    assert (book.encode(written) == strict.encode(meant)).all()
    assert book.encode_target(["nein", "yes"]).tolist() == [0, 1]
    assert book.column_names == strict.column_names
    book.save(tmp_path / "book.toml")
    assert Codebook.load(tmp_path / "book.toml") == book == Codebook.from_dict(book.to_dict())
    assert [column.missing for column in book.check(written)] == [0, 1, 2]
    with pytest.raises(PrivateDataError, match="must hold levels that the codebook lists"):
        strict.encode(written)
    (sex,) = [part for part in strict.features if part.name == "sex"]
    capitals, alias = sex.admit(["f", "W"])
    assert capitals == "ignore_case = true"
    assert alias.startswith('aliases = { "W" = LEVEL }, with the level that it means for LEVEL')
    sex = replace(book.features[0], ignore_case=False)
    assert sex.admit(["Weiblich", "x"])[0] == "ignore_case = true"
    assert sex.admit(["x"])[0].startswith('"x" = LEVEL among its aliases')
    assert sex.admit(["x", "y", "x"])[0].startswith('"x" = LEVEL, "y" = LEVEL among its aliases')
    assert Numeric("age", 0, 9).mend(["1.234,5"]) == [
        "write 1234.5 instead of 1.234,5: without marks between thousands"
    ]
    with pytest.raises(InputError, match="dates without quotes: 2024-01-31"):
        Numeric("when", "01.01.2024", "31.12.2024")  # type: ignore[arg-type]
