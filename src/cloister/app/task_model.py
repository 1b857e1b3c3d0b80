"""One task's own model, and its file, which can be handed to that task alone.

Model files of a run are called by their tasks' names where these are safe, with an index beside them.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from cloister.app.predict import Index, class_probabilities, deviations, intervals, numbers
from cloister.app.summary import OwnCoefficient, TaskSummary
from cloister.core.arrays import Array, Floats, States
from cloister.core.document import check_format
from cloister.core.errors import InputError
from cloister.store.files import write_private
from cloister.tables.codebook import Codebook
from cloister.tables.coefficient_units import coefficient_names, in_user_units, user_coefficients
from cloister.tables.column_types import Numeric
from cloister.tables.columns import encode_rows, has_column, row_count, split_table

FORMAT = "cloister task model 1"

#: What a model may say of itself beside its posterior.
FACTS = ("rows", "shared_weight", "freedom", "spread")


@dataclass(frozen=True)
class Prior:
    """What the board says of a task without rows: means and deviations of coefficients, in user's units.

    Deviations are None where it was not heard how far tasks lie apart.
    """

    mean: tuple[float, ...]
    deviation: tuple[float | None, ...]

    @classmethod
    def of(cls, codebook: Codebook, model: Mapping[str, Array], heard: bool = True) -> Prior | None:
        """Take one row of the board's models; None if it says nothing.

        Parameters
        ----------
        codebook : Codebook
            The user's units.
        model : mapping
            One row of the board's models.
        heard : bool
            Whether it was heard how far tasks lie apart: if not, the covariance is a guess, and wide.
        """
        if "covariance" not in model or not float(model.get("shared_weight", 0.0)) > 0:
            return None
        mean, covariance = in_user_units(codebook, model["coef"], model["covariance"])
        deviation = np.sqrt(np.maximum(np.diag(covariance), 0.0))
        return cls(tuple(mean.tolist()), tuple(deviation.tolist() if heard else [None] * len(deviation)))


@dataclass(frozen=True, eq=False, repr=False)
class TaskModel:
    """A task's posterior: mean weights, their covariance and, for numbers, the noise variance.

    Weights are on encoded columns; `coef` and `intercept` are in the user's units. Where an algorithm gives
    no posterior, the covariance is NaN throughout. `facts` are what else the model says of itself: its number
    of rows, the weight of the shared priors and, for numbers, degrees of freedom. `alone` are the weights
    that its own rows would give without the others.
    """

    task: str
    codebook: Codebook
    weights: Floats
    covariance: Floats
    noise: float | None
    facts: Mapping[str, float] = field(default_factory=dict)
    prior: Prior | None = None
    alone: Floats | None = None

    @classmethod
    def of(
        cls, task: str, codebook: Codebook, model: Mapping[str, Array], prior: Prior | None = None
    ) -> TaskModel:
        """Take one task's row of a run's models."""
        noise = float(model["noise"]) if "noise" in model else None
        covariance = model.get("covariance", no_posterior(model["coef"]))
        facts = {name: float(model[name]) for name in FACTS if name in model}
        return cls(task, codebook, model["coef"], covariance, noise, facts, prior, model.get("alone"))

    def __repr__(self) -> str:
        return f"TaskModel({self.task!r}, {self.codebook.width} weights, private)"

    @property
    def coef(self) -> Floats:
        """Coefficients in the user's units; one row a class beyond the first where there are several."""
        return user_coefficients(self.codebook, self.weights)[0]

    @property
    def intercept(self) -> Floats:
        return user_coefficients(self.codebook, self.weights)[1]

    def predict(self, X: object) -> Array:
        """Predict numbers or classes for a table of this task's rows; other columns are ignored.

        Rows that the task column, if the table has it, says are another task's are refused.
        """
        rows, models, at = self._rows(X)
        if isinstance(self.codebook.target, Numeric):
            return numbers(self.codebook, rows, models, at)
        return self.codebook.decode_target(
            class_probabilities(self.codebook, rows, models, at).argmax(axis=1)
        )

    def predict_proba(self, X: object) -> Floats:
        if isinstance(self.codebook.target, Numeric):
            raise InputError("This model predicts numbers; it has no class probabilities.")
        return class_probabilities(self.codebook, *self._rows(X))

    def predict_std(self, X: object) -> Floats:
        """Return the standard deviation of a numeric prediction, noise included."""
        if not isinstance(self.codebook.target, Numeric):
            raise InputError("This model predicts classes; ask for predict_proba.")
        return deviations(self.codebook, *self._rows(X))

    def predict_interval(self, X: object, coverage: float = 0.95) -> tuple[Floats, Floats]:
        """Return the lower and the upper end of the interval that holds a row's number so often."""
        if not isinstance(self.codebook.target, Numeric):
            raise InputError("This model predicts classes; ask for predict_proba.")
        return intervals(self.codebook, *self._rows(X), coverage)

    def summary(self) -> TaskSummary:
        """Return the task's own page: coefficients, their standard errors, and how far they were shrunk.

        Privacy
        -------
        Private: it is the task's alone, as the model is.
        """
        book, known = self.codebook, bool(np.isfinite(self.covariance).all())
        values, covariance = in_user_units(book, self.weights, self.covariance if known else None)
        errors = np.sqrt(np.maximum(np.diag(covariance), 0.0))
        missing: list[float | None] = [None] * len(values)
        columns = (
            values.tolist(),
            errors.tolist() if known else missing,
            missing if self.alone is None else in_user_units(book, self.alone)[0].tolist(),
            missing if self.prior is None else self.prior.mean,
            missing if self.prior is None else self.prior.deviation,
        )
        rows = zip(coefficient_names(book), *columns, strict=True)
        goal = book.target
        return TaskSummary(
            self.task,
            tuple(OwnCoefficient(*row) for row in rows),
            self.facts.get("rows"),
            self.facts.get("shared_weight"),
            None if self.noise is None else math.sqrt(self.noise) * book.target_scale,
            goal.effects,
        )

    @property
    def arrays(self) -> States:
        """The model as arrays of one task, without what an algorithm does not give."""
        found = {"coef": self.weights[None]} | {name: np.array([fact]) for name, fact in self.facts.items()}
        found |= {} if self.alone is None else {"alone": self.alone[None]}
        if np.isfinite(self.covariance).all():
            found["covariance"] = self.covariance[None]
        return found | ({} if self.noise is None else {"noise": np.array([self.noise])})

    def _rows(self, X: object) -> tuple[Floats, States, Index]:
        column = self.codebook.task
        named = column is not None and has_column(X, column)
        columns = split_table(X, column, None if named else np.zeros(row_count(X), dtype=int))
        if named and any(str(task) != self.task for task in np.unique(columns.ids)):
            raise InputError(
                f"This is the model of task {self.task!r}, but column {column!r} names other tasks. Keep "
                "this task's rows only, or leave the column out."
            )
        features = {k: v for k, v in columns.features.items() if k in self.codebook.names}
        rows = encode_rows(self.codebook, replace(columns, features=features))
        return rows, self.arrays, np.zeros(len(rows), dtype=np.intp)

    def to_sklearn(self) -> Any:
        """Return the model as an estimator of scikit-learn's own, for where cloister is not installed.

        It predicts numbers within the target's bounds, or classes and their probabilities (in the order of
        its `classes_`, sorted), as this model does, from a data frame with the same columns; without
        standard deviations. Cells must be written as the codebook lists them: it does not take "yes" for
        True. Dates are refused. Pickle it, or use skops; the file is this task's own.

        Examples
        --------
        >>> book = Codebook.from_mapping({0: (0, 100), "y": (0, 10)}, 1)
        >>> model = TaskModel.of("Elm", book, {"coef": np.array([0.0, 2**0.5])})
        >>> model.to_sklearn().predict([[10], [50], [900]]), model.predict([[10], [50], [900]])
        (array([ 1.,  5., 10.]), array([ 1.,  5., 10.]))
        """
        from cloister.app.export import stock_estimator

        return stock_estimator(self)

    def save(self, path: str | os.PathLike[str], *, synced: bool = True) -> Path:
        """Write the model to a JSON file that its owner alone can read; one that is there is replaced."""
        document = {
            "format": FORMAT,
            "task": self.task,
            "columns": list(self.codebook.column_names),
            "coef": self.coef.tolist(),
            "intercept": np.asarray(self.intercept).tolist(),
            "weights": self.weights.tolist(),
            "covariance": self.covariance.tolist() if np.isfinite(self.covariance).all() else None,
            "noise": self.noise,
            "facts": dict(self.facts),
            "prior": None if self.prior is None else asdict(self.prior),
            "alone": None if self.alone is None else self.alone.tolist(),
            "codebook": self.codebook.to_dict(),
        }
        return write_private(Path(path), json.dumps(document).encode(), synced=synced)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TaskModel:
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            check_format(document.get("format"), FORMAT, path)
            book, covariance = Codebook.from_dict(document["codebook"], str(path)), document["covariance"]
            prior, alone = document.get("prior"), document.get("alone")  # not in files of earlier versions
            weights = _numbers(document["weights"], np.size(document["weights"]))
            if type(document["task"]) is not str or weights.size != book.target.weights(book.width):
                raise ValueError("its task or its weights are of another codebook")
            return cls(
                document["task"],
                book,
                weights,
                no_posterior(weights) if covariance is None else _numbers(covariance, weights.size, 2),
                None if document["noise"] is None else float(_numbers(document["noise"], 1, 0)),
                {str(name): float(fact) for name, fact in document.get("facts", {}).items()},
                None if prior is None else _prior(prior, weights.size),
                None if alone is None else _numbers(alone, weights.size),
            )
        except InputError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise InputError(
                f"{path} is not the model of a task: {error}. Name a file such as exam-run/models/Elm.json."
            ) from None


def _numbers(found: object, size: int, axes: int = 1) -> Floats:
    """Return what a file says as finite numbers, with axes of this length."""
    array = np.array(found)
    if array.shape != (size,) * axes or array.dtype.kind not in "if" or not np.isfinite(array).all():
        raise ValueError(f"numbers of shape {(size,) * axes} are not there")
    return array.astype(np.float64)


def _prior(found: Mapping[str, Any], size: int) -> Prior:
    deviation = found["deviation"]
    heard = isinstance(deviation, list) and None not in deviation
    if not heard and deviation != [None] * size:
        raise ValueError("deviations of the prior are not there")
    known = _numbers(deviation, size).tolist() if heard else [None] * size
    return Prior(tuple(_numbers(found["mean"], size).tolist()), tuple(known))


def no_posterior(weights: Floats) -> Floats:
    """Return the covariance of weights that come without a posterior: not a number."""
    return np.full((weights.size, weights.size), np.nan)


#: The table of which file is whose, beside the files.
INDEX = "index.csv"
#: Names that Windows keeps for devices, whatever the extension.
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)")
#: The longest name that is written out; file systems allow 255 bytes.
_LONGEST = 200
_MARKS = frozenset(" _-.,'()+&")


def file_names(tasks: Iterable[str]) -> dict[str, str]:
    """Return the name of each task's model file: as people write it where that is safe, or else `file_name`.

    Letters, digits and a few marks stay, anything else is percent-encoded. Safe is what means the same on
    every file system and is like no other task's on one that does not tell capitals apart.

    Examples
    --------
    >>> file_names(["Elm", "Müller 2", "Oak", "oak", "Ash/Yew", "../Ash"])  # doctest: +NORMALIZE_WHITESPACE
    {'Elm': 'Elm.json', 'Müller 2': 'Müller 2.json', 'Oak': '%4Fak.json', 'oak': 'oak.json',
     'Ash/Yew': 'Ash%2FYew.json', '../Ash': '%2E%2E%2F%41sh.json'}
    """
    names = list(tasks)
    alike = Counter(map(_folded, names))
    return {task: names_of_files(task)[0] if alike[_folded(task)] == 1 else file_name(task) for task in names}


def names_of_files(task: str) -> tuple[str, ...]:
    """Return the names that a task's model file may have, the best first, whoever else was in the run.

    No two tasks have one in common: `urllib.parse.unquote` gives the id back from all but cut ones.
    """
    plain = "".join(c if _is_plain(c) else _percent(c) for c in task)
    return tuple(dict.fromkeys([*([f"{plain}.json"] if _is_safe(plain) else []), file_name(task)]))


def on_disk(folder: Path) -> dict[str, Path]:
    """Return the model files in a folder by name, letter for letter, whatever its file system makes of it."""
    return {unicodedata.normalize("NFC", path.name): path for path in sorted(folder.glob("*.json"))}


def file_name(task: str) -> str:
    """Return a name that is different for different tasks on every file system, whatever they are called.

    Capitals are encoded too, because some file systems do not tell them apart. `urllib.parse.unquote`
    gives the id back, unless it was too long for a file name.

    Examples
    --------
    >>> file_name("school-7"), file_name("A/b"), file_name("a/b")
    ('school-7.json', '%41%2Fb.json', 'a%2Fb.json')
    """
    name = "".join(c if re.fullmatch(r"[a-z0-9_-]", c) else _percent(c) for c in task)
    if _DEVICES.fullmatch(name):
        name = _percent(name[0]) + name[1:]
    if len(name) > _LONGEST:
        name = f"{name[:100]}...{hashlib.sha256(task.encode()).hexdigest()}"
    return f"{name}.json"


def task_of(path: Path) -> str | None:
    """Return the task whose model file this is by its name; None if the id was too long for it."""
    return None if "..." in path.name else unquote(path.name.removesuffix(".json"))


def write_index(folder: Path, files: dict[str, str]) -> None:
    """Write which file is whose, as a table that spreadsheets open; for the folder's owner alone."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("task", "file"), *files.items()])
    write_private(folder / INDEX, text.getvalue().encode(), synced=False)


def _is_plain(character: str) -> bool:
    same = unicodedata.normalize("NFKC", character) == character
    return same and (character.isalnum() or character in _MARKS)


def _is_safe(name: str) -> bool:
    """Say whether a name is one and the same file on every file system, and no place or option anywhere."""
    ends = re.fullmatch(r"[\w%].*[\w)]|\w", name) is not None and name[0] != "_" and ".." not in name
    device = _DEVICES.fullmatch(name.split(".")[0].rstrip().casefold())
    composed = unicodedata.normalize("NFC", name) == name
    held = name.isascii() or sys.getfilesystemencoding().lower() in ("utf-8", "utf8")
    return ends and not device and composed and held and len(name.encode()) <= _LONGEST


def _folded(task: str) -> str:
    """Return what a file system that does not tell capitals apart might take a name for."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", task).upper().casefold())


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())
