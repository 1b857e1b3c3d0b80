from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import InputError
from cloister.tables.codebook import Codebook
from cloister.tables.column_types import Categorical, Classes, Numeric

BOUNDS = {"age": (0, 120), "sex": ["F", "M"], "color": ["red", "green", "blue"], "score": (0, 10)}
ROWS = {
    "age": np.array([0.0, 30.0, 120.0, 200.0]),
    "sex": np.array(["F", "M", "M", "F"]),
    "color": np.array(["red", "green", "blue", "blue"], dtype=object),
}


@pytest.fixture
def book() -> Codebook:
    return Codebook.from_mapping(BOUNDS, ["age", "sex", "color"], "score", task="school")


@pytest.fixture
def labels() -> Codebook:
    return Codebook((Numeric("dose", -1, 3),), Classes("cured", ("no", "yes")))


MEND = (
    "Mend the cells, or what the codebook says if that is publicly wrong. Codebook.check, or `cloister "
    "codebook DATA --check CODEBOOK`, shows them to you."
)
ALONE = "For the operator alone: this tells something about a task's rows."


def refused(text: str) -> pytest.RaisesExc[InputError]:
    """Expect the whole sentence, not a part of it."""
    return pytest.raises(InputError, match=f"^{re.escape(text)}$")


def test_encode_is_the_documented_map(book: Codebook) -> None:
    expected = np.array([[1, -1, 0, 0, 0], [1, -0.5, 1, 1, 0], [1, 1, 1, 0, 1], [1, 1, 0, 0, 1]]) / np.sqrt(
        1 + 3
    )
    np.testing.assert_allclose(book.encode(ROWS), expected)
    assert book.encode(ROWS).dtype == np.float64
    assert book.column_names == ("age", "sex[M]", "color[green]", "color[blue]")
    assert book.width == 5


def test_encode_takes_an_array_in_feature_order(book: Codebook) -> None:
    table = np.empty((4, 3), dtype=object)
    for i, column in enumerate(ROWS.values()):
        table[:, i] = column
    np.testing.assert_array_equal(book.encode(table), book.encode(ROWS))
    np.testing.assert_array_equal(book.encode(table.tolist()), book.encode(ROWS))


def test_encode_depends_on_its_own_row_only(book: Codebook) -> None:
    alone = np.vstack([book.encode({k: v[i : i + 1] for k, v in ROWS.items()}) for i in range(4)])
    np.testing.assert_array_equal(alone, book.encode(ROWS))


def test_encode_leaves_its_input_alone_and_ignores_other_columns(book: Codebook) -> None:
    before = ROWS["age"].copy()
    np.testing.assert_array_equal(book.encode(ROWS | {"name": np.arange(9)}), book.encode(ROWS))
    np.testing.assert_array_equal(ROWS["age"], before)


def test_encode_of_no_rows_has_the_width(book: Codebook) -> None:
    assert book.encode({name: [] for name in book.names}).shape == (0, 5)


finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def books_and_rows(draw: st.DrawFn) -> tuple[Codebook, dict[str, list[float | int]]]:
    parts: list[Numeric | Categorical] = []
    rows: dict[str, list[float | int]] = {}
    n = draw(st.integers(1, 5))
    for i in range(draw(st.integers(1, 5))):
        name = f"c{i}"
        if draw(st.booleans()):
            low, high = sorted(draw(st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=2, unique=True)))
            parts.append(Numeric(name, low, high))
            rows[name] = draw(st.lists(finite, min_size=n, max_size=n))
        else:
            levels = range(draw(st.integers(2, 4)))
            parts.append(Categorical(name, list(levels)))
            rows[name] = draw(st.lists(st.sampled_from(levels), min_size=n, max_size=n))
    return Codebook(tuple(parts), Numeric("y", 0, 1)), rows


@given(books_and_rows())
def test_no_row_is_longer_than_one(case: tuple[Codebook, dict[str, list[float | int]]]) -> None:
    book, rows = case
    norms = np.linalg.norm(book.encode(rows), axis=1)
    assert np.all(norms <= 1 + 1e-12)
    assert np.all(norms >= 1 / book.row_scale - 1e-12)


def test_the_bound_on_the_norm_is_attained(book: Codebook) -> None:
    worst = book.encode({"age": [120], "sex": ["M"], "color": ["blue"]})
    assert np.linalg.norm(worst) == pytest.approx(1.0)


def test_numeric_targets_are_clipped_and_come_back(book: Codebook) -> None:
    encoded = book.encode_target([-5, 0, 2.5, 10, 11])
    np.testing.assert_allclose(encoded, [-1, -1, -0.5, 1, 1])
    np.testing.assert_allclose(book.decode_target(encoded), [0, 0, 2.5, 10, 10])
    assert book.decode_target([1.2]) == pytest.approx([11.0])
    assert book.target_scale == 5.0


def test_class_targets_are_indices_and_come_back(labels: Codebook) -> None:
    y = np.array(["yes", "no", "yes"])
    encoded = labels.encode_target(y)
    assert encoded.dtype == np.int64
    np.testing.assert_array_equal(encoded, [1, 0, 1])
    np.testing.assert_array_equal(labels.decode_target(encoded), y)
    assert labels.target_scale == 1.0


def test_boolean_and_integer_classes_are_the_same_labels() -> None:
    book = Codebook((Numeric("a", 0, 1),), Classes("y", [False, True]))
    np.testing.assert_array_equal(book.encode_target(np.array([True, False])), [1, 0])
    np.testing.assert_array_equal(book.encode_target([1.0, 0.0]), [1, 0])


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
def test_user_units_give_the_decoded_prediction(book: Codebook, shape: tuple[int, ...]) -> None:
    weights = np.random.default_rng(0).standard_normal(shape)
    coef, intercept = book.to_user_units(weights)
    assert coef.shape == (*shape[:-1], 4)
    assert intercept.shape == shape[:-1]
    direct = book.decode_target(weights @ book.encode(ROWS).T)
    np.testing.assert_allclose(intercept[..., None] + coef @ book.user_columns(ROWS).T, direct, rtol=1e-12)


def test_user_units_are_units_of_feature_and_target() -> None:
    book = Codebook((Numeric("age", 0, 100),), Numeric("income", 0, 1000))
    coef, intercept = book.to_user_units([0.0, np.sqrt(2)])
    assert coef == pytest.approx([10.0])  # 1000 of income over 100 years of age
    assert intercept == pytest.approx(0.0)


def test_user_units_of_a_classifier_are_log_odds(labels: Codebook) -> None:
    weights = np.array([0.3, -1.0])
    coef, intercept = labels.to_user_units(weights)
    x = np.array([-1.0, 0.0, 3.0])
    np.testing.assert_allclose(intercept + coef[0] * x, labels.encode({"dose": x}) @ weights)


VARIED = [
    Codebook.from_mapping(BOUNDS, ["age", "sex", "color"], "score", task="school"),
    Codebook((Numeric("IQ.verb", -1.5, 2), Categorical("sp ace", [3, 1, 2])), Classes("é", [0, 1])),
    Codebook.from_data(np.array([[0.0, 1.0], [2.0, 5.0]]), ["b", "a"]),
]


@pytest.mark.parametrize("book", VARIED)
def test_round_trips(book: Codebook, tmp_path: Path) -> None:
    file = tmp_path / "book.toml"
    book.save(file)
    assert Codebook.load(file) == book
    assert Codebook.from_dict(json.loads(json.dumps(book.to_dict(), sort_keys=True))) == book


def test_the_file_has_the_documented_tables(book: Codebook, tmp_path: Path) -> None:
    book.save(tmp_path / "book.toml")
    data = tomllib.loads((tmp_path / "book.toml").read_text())
    assert data["task"] == "school"
    assert data["target"] == {"name": "score", "bounds": [0, 10]}
    assert data["features"]["age"] == {"bounds": [0, 120]}
    assert data["features"]["sex"] == {"levels": ["F", "M"]}


def test_a_template_has_names_and_kinds_and_can_be_filled_in(tmp_path: Path) -> None:
    kinds = {"school": "text", "IQ.verb": "numeric", "sex": "text", "score": "numeric"}
    text = Codebook.template(kinds, "school", "score")  # type: ignore[arg-type]
    assert tomllib.loads(text) == {
        "task": "school",
        "target": {"name": "score", "bounds": []},
        "features": {"IQ.verb": {"bounds": []}, "sex": {"levels": []}},
    }
    assert "what is *possible*" in text
    file = tmp_path / "book.toml"
    file.write_text(text.replace("levels = []", 'levels = ["F", "M"]').replace("ds = []", "ds = [0, 20]"))
    expected = {"IQ.verb": (0, 20), "sex": ["F", "M"], "score": (0, 20)}
    assert Codebook.load(file) == Codebook.from_mapping(expected, ["IQ.verb", "sex"], "score", "school")


def test_a_template_for_a_text_target_asks_for_classes() -> None:
    text = Codebook.template({"a": "numeric", "y": "text"}, None, "y")
    assert tomllib.loads(text) == {"target": {"name": "y", "classes": []}, "features": {"a": {"bounds": []}}}


def test_unnamed_columns_are_known_by_index_or_name() -> None:
    expected = Codebook((Numeric("x0", 0, 1), Categorical("x1", ("a", "b"))), Numeric("target", 0, 1))
    assert Codebook.from_mapping({0: (0, 1), 1: ["a", "b"], "y": (0, 1)}, 2) == expected
    assert Codebook.from_mapping({"x0": (0, 1), "x1": ["a", "b"], "target": (0, 1)}, 2) == expected
    assert Codebook.from_mapping({np.int64(0): (0, 1), 1: ["a", "b"], "y": (0, 1)}, 2) == expected


def test_a_tuple_is_a_range_and_a_list_is_levels() -> None:
    book = Codebook.from_mapping({"a": (0, 1), "b": [0, 1], "c": ("u", "v"), "y": [0, 1]}, ["a", "b", "c"])
    assert [type(part) for part in book.features] == [Numeric, Categorical, Categorical]
    assert book.target == Classes("target", (0, 1))


def test_a_feature_called_y_is_not_the_target() -> None:
    book = Codebook.from_mapping({"y": (0, 1), "target": (0, 2)}, ["y"])
    assert book.target == Numeric("target", 0, 2)


def test_from_data_reads_bounds_and_says_so() -> None:
    mixed = np.array([1, 2.5, 2], dtype=object)
    X = {"a": [3.0, -1.0, 2.0], "b": ["u", "v", "u"], "c": [7, 7, 7], "d": mixed}
    book = Codebook.from_data(X, [5, 6, 9], target="score", task="t")
    assert book.features == (
        Numeric("a", -1, 3),
        Categorical("b", ("u", "v")),
        Numeric("c", 6.5, 7.5),
        Numeric("d", 1, 2.5),
    )
    assert book.target == Numeric("score", 5, 9)
    assert book.from_private_data
    assert Codebook.from_dict(book.to_dict()).from_private_data
    assert not Codebook.from_mapping(BOUNDS, ["age", "sex", "color"], "score").from_private_data


def test_from_data_can_read_numbers_as_classes() -> None:
    assert Codebook.from_data([[0.0], [1.0]], [2, 10], classify=True).target == Classes("target", (2, 10))


def test_the_module_itself_imports_nothing_heavy() -> None:
    code = (
        "import importlib.util, sys, types; package = types.ModuleType('cloister'); "
        "package.__path__ = importlib.util.find_spec('cloister').submodule_search_locations; "
        "sys.modules['cloister'] = package; import cloister.tables.codebook; "
        "print({'pandas', 'scipy', 'sklearn', 'narwhals'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "set()"


@pytest.mark.parametrize(
    ("low", "high"), [(1, 1), (2, 1), (0, np.inf), (np.nan, 1), ("a", "b"), (False, True), (0, 5e-324)]
)
def test_bounds_must_be_a_range(low: object, high: object) -> None:
    with refused(
        f"bounds of 'age' must be two finite numbers, low < high. Got ({low!r}, {high!r}). "
        "Write the lowest and the highest value that are publicly possible."
    ):
        Numeric("age", low, high)  # type: ignore[arg-type]


@pytest.mark.parametrize("levels", [[], ["a"], ["a", "a"], ["a", 1], {"a", "b"}, "ab", [None, None], 3])
def test_levels_must_be_two_or_more(levels: object) -> None:
    with refused(
        "levels of 'sex' must be a list of two or more different values, all text or all numbers. "
        f"Got {levels!r}. List every level that is publicly possible."
    ):
        Categorical("sex", levels)  # type: ignore[arg-type]


def test_names_must_differ() -> None:
    rule = "a codebook must have at least one feature, and different names for features, target and task. "
    with refused(rule + "Got ['a', 'a']. Rename or remove a column."):
        Codebook((Numeric("a", 0, 1),), Numeric("a", 0, 1))
    with refused(rule + "Got ['y']. Rename or remove a column."):
        Codebook((), Numeric("y", 0, 1))


def test_every_missing_column_is_named() -> None:
    with refused("bounds must hold every column. Missing: ['b', 'c', 'score']. Add a range or levels."):
        Codebook.from_mapping({"a": (0, 1)}, ["a", "b", "c"], "score")


def test_every_unknown_entry_is_named() -> None:
    with refused("bounds must name columns only. Unknown: ['agee', 7]. Remove or respell the entry."):
        Codebook.from_mapping({"a": (0, 1), "agee": (0, 1), 7: (0, 1), "y": (0, 1)}, ["a"])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_missing_or_infinite_is_counted_not_shown(book: Codebook, bad: float) -> None:
    with refused(
        "Column 'age' must have a value in every row. 2 rows have none. Write what stands for missing ones "
        "under it in the codebook, missing = VALUE, with a publicly known usual one (0 to 120) for VALUE, or "
        f"drop such rows by a public rule. {ALONE}"
        if np.isnan(bad)
        else f"Column 'age' must hold finite numbers, as the codebook says. 2 rows do not. {MEND} {ALONE}"
    ):
        book.encode(ROWS | {"age": [bad, 1.0, bad, 2.0]})


def test_text_in_a_numeric_column_is_refused(book: Codebook) -> None:
    with refused(
        f"Column 'age' must hold finite numbers, as the codebook says. 1 row does not. {MEND} {ALONE}"
    ):
        book.encode(ROWS | {"age": np.array([1, "secret", 2, 3], dtype=object)})


@pytest.mark.parametrize(
    ("values", "first"),
    [
        (["F", "secret", "M", "secret"], "Row 2 does not (the first of 2 rows)"),
        ([0, 1, 1, 0], "Row 1 does not (the first of 4 rows)"),
        (["F", "F", "F", ["F"]], "Row 4 does not"),
    ],
)
def test_an_unlisted_level_is_named_by_its_row_and_not_shown(
    book: Codebook, values: list[object], first: str
) -> None:
    column = np.empty(4, dtype=object)
    column[:] = values
    with refused(
        f"Column 'sex' must hold levels that the codebook lists ('F', 'M'). {first}. {MEND} {ALONE}"
    ):
        book.encode(ROWS | {"sex": column}, at=lambda row: f"Row {row + 1}")


def test_an_unlisted_class_and_a_missing_target_are_refused(book: Codebook, labels: Codebook) -> None:
    with pytest.raises(InputError, match=r"^Column 'cured' must hold levels .* 1 row does not"):
        labels.encode_target(["yes", "maybe"])
    with pytest.raises(
        InputError, match=r"^Column 'score' must .* 1 row has a missing value\. Leave such rows out.*'score'"
    ):
        book.encode_target([1.0, np.nan])


def test_a_column_must_be_there_flat_and_as_long_as_the_others(book: Codebook) -> None:
    with refused("columns must hold every feature. Missing: ['sex', 'color']. Add or rename the column."):
        book.encode({"age": [1.0]})
    with refused("column 'age' must be a 1-D array. Got shape (4, 1). Flatten it."):
        book.encode(ROWS | {"age": ROWS["age"][:, None]})
    with refused("columns must have one length. Got {'age': 1, 'sex': 4, 'color': 4}. Take one table."):
        book.encode(ROWS | {"age": [1.0]})


def test_an_array_must_have_the_features_and_a_data_frame_has_names(book: Codebook) -> None:
    with refused(
        "an array without names must have the codebook's 3 features, in order. Got 2 columns. Pass a table "
        "with names, or those columns."
    ):
        book.encode(np.zeros((4, 2)))
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(ROWS)[["color", "sex", "age"]]  # in another order: names count
    np.testing.assert_array_equal(book.encode(frame), book.encode(ROWS))
    np.testing.assert_array_equal(book.encode(dict(frame.items())), book.encode(ROWS))


def test_weights_must_have_the_width(book: Codebook) -> None:
    with refused(
        "weights must have 5 entries in their last axis, intercept first. Got shape (2, 4). "
        "Use the weights of a model that was fitted with this codebook."
    ):
        book.to_user_units(np.zeros((2, 4)))


def test_an_unfilled_template_is_refused_by_column_and_file(tmp_path: Path) -> None:
    file = tmp_path / "book.toml"
    file.write_text(Codebook.template({"age": "numeric", "y": "text"}, None, "y"))
    with refused(
        f"bounds of 'age' in {file} must be filled in. Got an empty list. "
        "Write what is publicly possible, not what is in the data, or delete the column with its heading."
    ):
        Codebook.load(file)


@pytest.mark.parametrize(
    "entry", [{}, {"bounds": [0, 1], "levels": [1]}, {"bounds": [0]}, {"bound": [0, 1]}, {"levels": 3}]
)
def test_an_entry_is_bounds_or_levels(entry: dict[str, object]) -> None:
    with refused(
        "'a' in the codebook must have either bounds = [low, high] or levels = [...]. "
        f"Got {entry}. Write exactly one of the two."
    ):
        Codebook.from_dict({"target": {"name": "y", "bounds": [0, 1]}, "features": {"a": entry}})


@pytest.mark.parametrize(
    "data", [{}, {"features": {}}, {"target": {"bounds": [0, 1]}, "features": {}}, {"colour": 1}]
)
def test_a_dictionary_must_have_the_tables(data: dict[str, object]) -> None:
    with refused(
        "the codebook must have [features.NAME] tables, a [target] table with a name, and optionally task. "
        f"Got the keys {sorted(data)}. Start from Codebook.template."
    ):
        Codebook.from_dict(data)


@pytest.mark.parametrize("row", [{"x": 1}, {"name": ["a"], "bounds": [0, 1]}, 1])
def test_a_listed_feature_must_have_a_name(row: object) -> None:
    with refused(
        f"every feature in the codebook must be a table with a name. Got {[row]}. Write a [features.NAME] "
        "table for each."
    ):
        Codebook.from_dict({"target": {"name": "y", "bounds": [0, 1]}, "features": [row]})


def test_a_listed_feature_does_not_replace_another() -> None:
    rows = [{"name": "a", "bounds": [0, 1]}, {"name": "a", "bounds": [0, 9]}]
    with pytest.raises(InputError, match="different names"):
        Codebook.from_dict({"target": {"name": "y", "bounds": [0, 1]}, "features": rows})


def test_a_file_must_be_there_and_be_toml(tmp_path: Path) -> None:
    file = tmp_path / "book.toml"
    with pytest.raises(InputError, match=r"^There is no codebook .*Check the path, or write one: "):
        Codebook.load(file)
    file.write_text("= broken")
    with pytest.raises(InputError, match=f"^codebook {re.escape(str(file))} must be readable TOML. Got: "):
        Codebook.load(file)


def test_a_template_needs_the_target() -> None:
    with refused("target must be a column. Got 'y'. Choose one of ['a']."):
        Codebook.template({"a": "numeric"}, None, "y")
