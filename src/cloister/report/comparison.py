"""A comparison of methods on public data, as one self-contained HTML page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from cloister.core.errors import InputError
from cloister.plan.forecast import Forecast
from cloister.plan.plan import Plan
from cloister.privacy.guarantee import Guarantee
from cloister.report.figures import Level, Point, histogram, tradeoff
from cloister.report.html_page import Stamp, load_template


@dataclass(frozen=True)
class MethodScores:
    """What one method scores.

    Parameters
    ----------
    name : str
        For people.
    kind : {"single", "pooled", "shared", "private"}
        What it is.
    epsilon : float
        What it costs each task; 0 if nothing leaves, infinity if nothing protects.
    errors : tuple of float
        Test error (nMSE) on each re-split.
    gains : float
        Share of tasks whose test error over all re-splits is lower than that of their own model.
    """

    name: str
    kind: str
    epsilon: float
    errors: tuple[float, ...]
    gains: float

    @property
    def mean(self) -> float:
        return fmean(self.errors)

    @property
    def sd(self) -> float:
        """Standard deviation of the error over re-splits."""
        return stdev(self.errors) if len(self.errors) > 1 else 0.0


@dataclass(frozen=True, eq=False)
class MethodComparison:
    """Everything the page shows.

    Parameters
    ----------
    methods : tuple of Method
        With exactly one each of the kinds single, pooled and shared.
    changes : array of shape (tasks,)
        Change of each task's test error (RMSE, in the target's units) at epsilon 1 against its own model.
    n_tasks, n_rows : int
        Size of the data.
    test : float
        Share of each task's rows that is held out.
    plan : Plan
        Of one run at epsilon 1.
    description : str
        What the data are.
    location : str
        Where the last run at epsilon 1 found targets.
    """

    methods: tuple[MethodScores, ...]
    changes: NDArray[np.float64]
    n_tasks: int
    n_rows: int
    test: float
    plan: Plan
    description: str
    location: str

    @property
    def guarantee(self) -> Guarantee:
        return self.plan.guarantee

    @cached_property
    def forecast(self) -> Forecast:
        return self.plan.forecast()

    def one(self, kind: str) -> MethodScores:
        """Return the method of a kind; of the private ones, the one at epsilon 1."""
        found = [m for m in self.methods if m.kind == kind and (kind != "private" or m.epsilon == 1)]
        if len(found) != 1:
            raise InputError(f"A comparison must have one method of kind {kind!r} (private: at epsilon 1).")
        return found[0]

    @property
    def private(self) -> list[MethodScores]:
        return sorted((m for m in self.methods if m.kind == "private"), key=lambda m: m.epsilon)

    def change(self, method: MethodScores) -> float:
        """Relative change of the error against single-task learning."""
        return method.mean / self.one("single").mean - 1

    @property
    def kept(self) -> float:
        """Share of the non-private gain that is kept at epsilon 1."""
        alone, shared = self.one("single").mean, self.one("shared").mean
        return (alone - self.one("private").mean) / (alone - shared) if alone != shared else math.nan

    @property
    def headline(self) -> str:
        change = self.change(self.one("private"))
        moved = f"{abs(change):.0%} {'less' if change < 0 else 'more'} error"
        if abs(change) < 0.005:
            moved = "no less error than alone"
        return f"{self.n_tasks:,} schools learn together: {moved}, with privacy ε = 1 for every school"

    def to_dict(self) -> dict[str, object]:
        """Return plain values, ready for JSON."""
        return {
            "tasks": self.n_tasks,
            "rows": self.n_rows,
            "methods": [
                {
                    "method": m.name,
                    "epsilon": m.epsilon,
                    "nmse": m.mean,
                    "nmse_sd": m.sd,
                    "change": self.change(m),
                    "share_of_tasks_that_gain": None if m.kind == "single" else m.gains,
                }
                for m in self.methods
            ],
            "share_of_gain_kept": self.kept,
            "guarantee": self.guarantee.to_dict(),
            "forecast": str(self.forecast),
            "location": self.location,
        }


def render(comparison: MethodComparison) -> str:
    """Return the page: HTML with its style and pictures inside, no script and nothing to fetch."""
    guarantee = comparison.guarantee
    return str(
        load_template("comparison.html").render(
            c=comparison,
            best=comparison.one("private"),
            figures=_figures(comparison),
            power=guarantee.detection(),
            statement=guarantee.statement,
            stamp=Stamp.of(comparison.plan),
            splits=len(comparison.methods[0].errors),
            infinity=math.inf,
        )
    )


def save(comparison: MethodComparison, path: str | Path) -> Path:
    Path(path).write_text(render(comparison), encoding="utf-8")
    return Path(path)


def _figures(comparison: MethodComparison) -> dict[str, list[str]]:
    """Draw each picture twice: for wide and for narrow screens."""
    points = [
        Point(m.epsilon, m.mean, m.sd, f"{m.mean:.3f}" if m.epsilon == 1 else "") for m in comparison.private
    ]
    names = {"single": "single-task", "pooled": "pooled", "shared": "non-private"}
    levels = [Level(name, comparison.one(kind).mean, kind) for kind, name in names.items()]
    limit = max(1.0, round(float(np.quantile(np.abs(comparison.changes), 0.97)) * 2) / 2)
    sizes = ((760, 360), (380, 330))
    return {
        "tradeoff": [tradeoff(points, levels, *size) for size in sizes],
        "changes": [
            histogram(
                comparison.changes, limit, *size, tasks="schools", axis="change of test error (RMSE, points)"
            )
            for size in sizes
        ],
    }
