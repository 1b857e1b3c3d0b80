"""The public face: sorted, complete, importable, and quick to import."""

from __future__ import annotations

import dataclasses
import inspect
import statistics
import subprocess
import sys
from types import ModuleType

import pytest

import cloister

HEAVY = [
    "torch",
    "flwr",
    "plotly",
    "pandas",
    "sklearn",
    "dp_accounting",
    "scipy",
    "narwhals",
    "polars",
    "pyarrow",
    "sqlalchemy",
]


def test_names_are_sorted_and_unique():
    assert cloister.__all__ == sorted(set(cloister.__all__))
    assert dir(cloister) == cloister.__all__


@pytest.mark.parametrize("name", cloister.__all__)
def test_every_name_can_be_had_and_says_what_it_is(name):
    value = getattr(cloister, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__name__ == name
        assert value.__module__.startswith("cloister.")
        assert name in sys.modules[value.__module__].__all__
        assert inspect.getdoc(value)
    else:
        assert isinstance(value, (ModuleType, str))


def test_everything_an_exported_module_exports_for_users_is_there():
    """Learners, algorithms, structures, lifts, samplings, mechanisms: a plan file may name them all."""
    from cloister import channel, errors
    from cloister.algorithms import independent, mean, prior, structures
    from cloister.learners import classification, losses, regression
    from cloister.privacy import mechanisms, sampling

    homes = [independent, mean, prior, structures, classification, losses, regression, mechanisms, sampling]
    nouns = {name for home in homes for name in home.__all__ if dataclasses.is_dataclass(getattr(home, name))}
    lifts = {name for name in channel.__all__ if dataclasses.is_dataclass(getattr(channel, name))}
    assert nouns | lifts | set(errors.__all__) <= set(cloister.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'cloister' has no attribute 'PublishedWishart'"):
        _ = cloister.PublishedWishart


def test_import_is_quick_and_light():
    """Median of three fresh interpreters, less than half a second; nothing heavy comes along."""
    code = (
        "import sys, time; start = time.perf_counter(); import cloister; "
        f"print(time.perf_counter() - start, *[m for m in {HEAVY!r} if m in sys.modules])"
    )
    times = []
    for _ in range(3):
        seconds, *loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
        times.append(float(seconds))
        assert loaded == []
    assert statistics.median(times) < 0.5


def test_a_plan_can_be_priced_without_torch_or_tables():
    """An operator prices a plan file; no data library is needed for that."""
    code = (
        "import sys, cloister as cl; "
        "plan = cl.Plan(cl.SharedPrior(cl.Regression(3)), n_tasks=100).calibrate(1.0); str(plan); "
        "print(*[m for m in ('torch', 'flwr', 'plotly', 'pandas', 'sklearn', 'polars') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == ""
