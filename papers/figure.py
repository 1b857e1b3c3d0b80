"""What a figure of a paper is to the command: a module with a few functions, found by looking."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from statistics import fmean, stdev
from types import ModuleType
from typing import Any

import papers

#: One part of a figure's work, and its result: JSON values (None where there is no noise, never infinity).
Cell = dict[str, Any]
Found = list[tuple[Cell, Any]]
Data = dict[str, Any]
#: A label, and what stands under each of `COLUMNS`.
Row = tuple[str, str, str, str, str]
COLUMNS = ("", "the paper", "its method", "with the true guarantee", "ours")


class Skipped(Exception):
    """A figure cannot be made here; the message says why, and what to give."""


class Verdict(StrEnum):
    """Whether what a paper says comes out."""

    YES = "comes out"
    PARTLY = "comes out in part"
    NO = "does not come out"


@dataclass(frozen=True)
class Outcome:
    """What a claim came to under one accounting, and the numbers that say so."""

    verdict: Verdict
    measured: str


@dataclass(frozen=True)
class Claim:
    """One statement of a paper, held against what was measured over the whole range that it is about.

    Parameters
    ----------
    says : str
        Where the paper says it, and what, in our words.
    printed : str
        The number that it prints; empty if there is none.
    published : Outcome, optional
        By the paper's method under the paper's own accounting.
    repaired : Outcome, optional
        By the same method with a guarantee that is true.
    asked : bool
        Whether it is a question of ours that the paper does not speak of; no verdict on the paper counts it.
    """

    says: str
    printed: str
    published: Outcome | None
    repaired: Outcome | None = None
    asked: bool = False

    @property
    def verdict(self) -> Verdict:
        """It comes out where it does so under both accountings, as far as both were measured."""
        return together([one.verdict for one in (self.published, self.repaired) if one])


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Return what all say, or that it is so in part."""
    return verdicts[0] if len(set(verdicts)) == 1 else Verdict.PARTLY


def judge(places: Sequence[bool], measured: str) -> Outcome:
    """Return whether something holds in all places that a claim is about, in some, or in none."""
    verdict = Verdict.YES if all(places) else Verdict.PARTLY if any(places) else Verdict.NO
    return Outcome(verdict, measured)


def count(places: Sequence[bool], noun: str = "places") -> Outcome:
    """Judge places, and say in how many of them it holds."""
    return judge(places, f"in {sum(places)} of {len(places)} {noun}")


@dataclass(frozen=True)
class Options:
    """How a figure is made: nothing here changes what one cell's result is.

    Parameters
    ----------
    quick : bool
        Fewer and smaller cells.
    seeds : int, optional
        Replications, instead of the figure's own number.
    device : str
        Where networks are computed on.
    data : mapping of str to Path
        Data that only the user has, by name: ``lsoa``, ``celeba``, ``stackoverflow``.
    """

    quick: bool = False
    seeds: int | None = None
    device: str = "cpu"
    data: Mapping[str, Path] = field(default_factory=dict)

    def replications(self, full: int, quick: int) -> range:
        """Return the seeds to run: so many in full, so many to have a look, or as many as the user says."""
        return range(self.seeds or (quick if self.quick else full))

    def path(self, name: str) -> Path:
        """Return where the user says that a data set is."""
        if name not in self.data:
            raise Skipped(f"{name} is not part of the project: name your copy with --data {name}=PATH.")
        if not self.data[name].exists():
            raise Skipped(f"{name} is not at {self.data[name]}.")
        return self.data[name]


@dataclass(frozen=True)
class Figure:
    """A figure, table or theorem: its name and the module that makes it (the package says what it has)."""

    name: str
    paper: str
    module: ModuleType

    @property
    def title(self) -> str:
        """The docstring's first line, without its full stop."""
        return (self.module.__doc__ or "").strip().splitlines()[0].rstrip(".")

    @property
    def text(self) -> str:
        """The docstring's other paragraphs, each in one line."""
        paragraphs = (self.module.__doc__ or "").strip().split("\n\n")[1:]
        return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)

    def claims(self, data: Data) -> list[Claim]:
        """Return the paper's statements that could be judged by these data."""
        made: list[Claim] = self.module.claims(data)
        return [claim for claim in made if claim.published or claim.repaired]

    def verdict(self, data: Data) -> Verdict:
        """Return what the paper's own statements come to, or our questions where it makes none."""
        claims = self.claims(data)
        return together([claim.verdict for claim in claims if not claim.asked] or [c.verdict for c in claims])


def folders() -> dict[str, ModuleType]:
    """Return the papers, by the names of their folders."""
    names = [item.name for item in pkgutil.iter_modules(papers.__path__) if item.ispkg]
    return {name: importlib.import_module(f"papers.{name}") for name in names}


def figures() -> dict[str, Figure]:
    """Return everything there is to make whose libraries are installed."""
    found = {}
    for paper, package in folders().items():
        names = sorted((item.name for item in pkgutil.iter_modules(package.__path__)), key=_numbers)
        for name in names:
            try:
                module = importlib.import_module(f"papers.{paper}.{name}")
            except ImportError as error:
                print(f"{paper} {name} is left out: {error}", file=sys.stderr)
                continue
            if hasattr(module, "NOT_COVERED"):
                full = f"{paper}-{name}".replace("_", "-")
                found[full] = Figure(full, paper, module)
    return found


def _numbers(name: str) -> list[tuple[bool, int, str]]:
    """Order figure_2 before figure_10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in name.split("_")]


def by(found: Iterable[tuple[Cell, Any]], *keys: str) -> dict[tuple[Any, ...], list[Any]]:
    """Group results by the values of these keys of their cells, in the order of first appearance."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for cell, value in found:
        groups.setdefault(tuple(cell[key] for key in keys), []).append(value)
    return groups


def mean(values: Sequence[float]) -> list[float]:
    """Return the mean and its standard error (0 for a single value), to five digits."""
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return [digits(fmean(values)), digits(error)]


def digits(value: float, count: int = 5) -> float:
    """Return a number to so many significant digits, as results are kept."""
    return float(f"{value:.{count}g}")


def budget(epsilon: float | None) -> str:
    """Return how tables and keys of results name a budget; None is without noise."""
    return "no noise" if epsilon is None else f"ε = {epsilon:g}"


def say(value: Sequence[float], form: str = ".4f") -> str:
    """Return a mean with its standard error as a table shows it."""
    return f"{value[0]:{form}} ± {value[1]:{form}}" if value[1] else f"{value[0]:{form}}"
