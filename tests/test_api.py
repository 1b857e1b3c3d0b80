"""The public face: sorted, complete, importable, and quick to import."""

from __future__ import annotations

import ast
import importlib
import inspect
import statistics
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import cloister
from cloister.errors import MissingExtraError

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


NAMESPACES = ["algorithms", "engines", "estimators", "learners", "mechanisms", "sampling"]
EXPORTED = [
    *((cloister, name) for name in cloister.__all__),
    *((getattr(cloister, home), name) for home in NAMESPACES for name in getattr(cloister, home).__all__),
]


def test_the_top_has_what_most_people_type():
    assert len(cloister.__all__) <= 28
    assert not {"FedAvg", "Gaussian", "Local", "PlanError"} & set(cloister.__all__)


@pytest.mark.parametrize(
    ("home", "name"), EXPORTED, ids=[f"{home.__name__}.{name}" for home, name in EXPORTED]
)
def test_every_name_can_be_had_and_says_what_it_is(home, name):
    assert home.__all__.count(name) == 1  # a linter keeps them sorted
    value = getattr(home, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__name__ == name
        assert value.__module__.startswith("cloister.")
        assert getattr(importlib.import_module(value.__module__), name) is value
        assert inspect.getdoc(value)
    else:
        assert isinstance(value, (ModuleType, str))


def test_whatever_a_plan_is_made_of_is_exported():
    """A file names values by ids; a user finds each of them one dot down."""
    from cloister.core.document import TYPES

    public = {name for home in NAMESPACES for name in getattr(cloister, home).__all__}
    public |= {*cloister.channel.__all__, *cloister.tune.__all__, "Plan", "cross_entropy"}
    public |= {"TrustedCurator", "SecureSum", "SiloNoise"}  # that functions of Trust return
    public |= {"TaskUnit", "RecordUnit", "PersonUnit"}  # and those of Unit
    assert {home.split(":")[1] for home in TYPES.values()} <= public


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
        "import sys, cloister as cl; prior = cl.algorithms.SharedPrior(cl.learners.Regression(3)); "
        "plan = cl.Plan(prior, n_tasks=100).calibrate(1.0); str(plan); "
        "print(*[m for m in ('torch', 'flwr', 'pandas', 'sklearn', 'polars') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == ""


ROOT = Path(cloister.__file__).parent
#: Where torch may be imported, in `arrays` for its types alone; all others reach it through these.
TORCH = (
    "networks/",
    "core/arrays.py",
)


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
    assert "networks/module.py" in found
    assert all(name.startswith(TORCH) for name in found)
    kernels = {path.name for path, names in uses.items() if "triton" in names}
    assert kernels == {"card_noise.py", "convolutions.py", "kernel_selection.py", "norm_kernel.py"}


#: What asks for which package, beside those that the tests of their own subjects try.
ASKING = [
    ("pyarrow", "tables", "cloister.app.parquet", "pyarrow_for", ("rows.parquet",)),
    ("pyarrow", "tables", "cloister.store.model_store", "read_models", (Path("models"),)),
    ("torch", "networks", "cloister.core.document", "library_class", ("cloister/module/2",)),
    ("uvicorn", "nodes", "cloister.nodes.service", "serve", (None, print)),
    ("flwr.serverapp", "flower", "cloister.nodes.flower", "server_app", ("curator",)),
    ("flwr.app", "flower", "cloister.nodes.flower", "client_app", ()),
]


@pytest.mark.parametrize(("package", "extra", "home", "name", "given"), ASKING)
def test_a_missing_package_names_its_extra(monkeypatch, package, extra, home, name, given):
    ask = getattr(importlib.import_module(home), name)
    monkeypatch.delitem(sys.modules, "cloister.networks.module", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        MissingExtraError, match=rf"needs the package '.*{package[:4]}.*'cloister\[{extra}\]'"
    ):
        ask(*given)


def test_a_missing_torch_is_one_sentence():
    """What needs no torch works without it: only a network, its penalties and its engine ask for it."""
    code = (
        "import sys; sys.modules['torch'] = None; import cloister as cl\n"
        "cl.learners.Descent(0.1), cl.algorithms.ServerAdam(), cl.algorithms.FedAvg, cl.engines.Local()\n"
        "for home, name in (('learners', 'Module'), ('learners', 'EWC'), ('engines', 'Batched')):\n"
        "    try: getattr(getattr(cl, home), name)\n"
        "    except cl.errors.MissingExtraError as error: print(error)"
    )
    told = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    assert told == [
        f"cloister.{name} needs the package 'torch'. Install it with: pip install 'cloister[networks]', or "
        "in a clone of cloister: pip install '.[networks]'"
        for name in ("learners.Module", "learners.EWC", "engines.Batched")
    ]
