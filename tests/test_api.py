"""The public face: sorted, complete, importable, and quick to import."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import statistics
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import cloister

HEAVY = [
    "torch",
    "flwr",
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
    from cloister.algorithms import (
        federated,
        finetuning,
        independent,
        mean,
        messages,
        prior,
        server,
        structures,
    )
    from cloister.engines import batched, local
    from cloister.learners import descent
    from cloister.learners.linear import classification, losses, regression
    from cloister.learners.network import module
    from cloister.privacy import mechanisms, sampling

    homes = [federated, independent, mean, prior, server, structures, mechanisms, sampling, batched, local]
    homes += [finetuning, classification, descent, losses, messages, module, regression]
    nouns = {name for home in homes for name in home.__all__ if dataclasses.is_dataclass(getattr(home, name))}
    lifts = {name for name in channel.__all__ if dataclasses.is_dataclass(getattr(channel, name))}
    assert nouns | lifts | set(errors.__all__) <= set(cloister.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'cloister' has no attribute 'PublishedWishart'"):
        _ = cloister.PublishedWishart


def test_import_is_quick_and_light():
    """Median of three fresh interpreters, less than half a second of work; nothing heavy comes along."""
    code = (
        "import sys, time; start = time.process_time(); import cloister; "
        f"print(time.process_time() - start, *[m for m in {HEAVY!r} if m in sys.modules])"
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
        "print(*[m for m in ('torch', 'flwr', 'pandas', 'sklearn', 'polars') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == ""


ROOT = Path(cloister.__file__).parent
#: Where torch may be imported, in `arrays` for its types alone; all others reach it through these.
TORCH = ("learners/network/", "engines/batched.py", "arrays.py")


def imported(tree: ast.AST) -> set[str]:
    """Return the packages that a file imports anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_torch_is_imported_in_its_own_files_alone():
    uses = {path: imported(ast.parse(path.read_text(encoding="utf-8"))) for path in ROOT.rglob("*.py")}
    found = {path.relative_to(ROOT).as_posix() for path, names in uses.items() if "torch" in names}
    assert "learners/network/module.py" in found
    assert all(name.startswith(TORCH) for name in found)
    assert {path.name for path, names in uses.items() if "triton" in names} == {"kernels.py"}


def test_a_missing_torch_is_one_sentence():
    """What needs no torch works without it: only a network, its penalties and its engine ask for it."""
    code = (
        "import sys; sys.modules['torch'] = None; import cloister as cl\n"
        "solver, server, rest = cl.Descent(0.1), cl.ServerAdam(), (cl.FedAvg, cl.Personalized, cl.Local())\n"
        "for name in ('Module', 'EWC', 'Batched'):\n"
        "    try: getattr(cl, name)\n"
        "    except cl.MissingExtraError as error: print(error)"
    )
    told = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    assert told == [
        f"cloister.{name} needs the package 'torch'. Install it with: pip install 'cloister[torch]'"
        for name in ("Module", "EWC", "Batched")
    ]
