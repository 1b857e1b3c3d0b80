"""Releases and models of before and after a change, to the bit: ``python tests/gate.py --against COMMIT``.

For a change that should move nothing, such as a refactoring. Every estimator is fitted to School, to 300
schools of Chem97 and to generated tables at three epsilons; plans run on every engine; and there are a
network, a stream and a vote. What is compared are hashes of each run's releases, of its models and of the
board's head. This program runs by the code that is here, and that of the commit, in a copy of its own, by the
code that is there: on one machine, since last bits differ between processors.

``python tests/gate.py --out FILE`` writes the hashes; words choose cases by parts of their names.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import cloister as cl
from cloister import datasets, estimators

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("CLOISTER_DATA", ROOT / "data"))
EPSILONS = (0.3, 1.0, 8.0)
FAMILIES = (
    "SharedPrior",
    "LowRank",
    "GroupSparse",
    "Decomposed",
    "MeanRegularized",
    "Meta",
    "SingleTask",
    "Pooled",
)
#: They tell nothing, or not privately: no epsilon.
FREE = ("SingleTask", "Pooled")
#: Settings of estimators that take another way through their algorithms.
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "mean": ("SharedPriorRegressor", {"structure": "mean"}),
    "lowrank": ("SharedPriorRegressor", {"structure": "lowrank"}),
    "sparse": ("SharedPriorRegressor", {"structure": "sparse"}),
    "mean, three classes": ("SharedPriorClassifier", {"structure": "mean"}),
    "relevance, three classes": ("SharedPriorClassifier", {"structure": "relevance"}),
    "unguarded": ("LowRankRegressor", {"guard": False, "rounds": 5}),
    "several penalties": ("LowRankRegressor", {"lam": (0.1, 1.0), "rounds": 5}),
    "several penalties, unguarded": ("GroupSparseRegressor", {"lam": (0.1, 1.0), "guard": False}),
    "half of the tasks": ("MeanRegularizedRegressor", {"sampling": cl.sampling.Poisson(0.5)}),
    "correlated noise": ("MeanRegularizedRegressor", {"mechanism": cl.mechanisms.Toeplitz()}),
    "several penalties, three classes": ("MeanRegularizedClassifier", {"lam": (0.01, 0.05)}),
}
Case = Callable[[], dict[str, str]]


def digest(arrays: Iterable[Any]) -> str:
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()[:16]


def of_run(board: Any, models: dict[str, Any]) -> dict[str, str]:
    """Return hashes of a run; the head also depends on names of arrays and on the plan's document."""
    return {
        "releases": digest(release.value for release in board.releases),
        "models": digest(np.asarray(models[key]) for key in sorted(models)),
        "head": board.head[:16] if isinstance(board.head, str) else board.head.hex()[:16],
    }


@cache
def table(name: str) -> tuple[Any, Any, Any, Any]:
    """Return rows, targets, tasks and codebook."""
    if name == "school":
        data = datasets.load_school(DATA / "school.npz")
    elif name in ("chem97", "chem97_high"):
        data = datasets.load(name)
    elif name == "landmine":
        data = datasets.load_landmine(DATA / "landmine.npz")
    else:
        return made(classes=3 if name == "three classes" else 0)
    chosen = np.isin(data.task, np.unique(data.task)[:300])
    X = {key: np.asarray(column)[chosen] for key, column in data.X.items()}
    return X, data.y[chosen], data.task[chosen], data.codebook


def made(classes: int, count: int = 60, dim: int = 4) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(5)
    task = np.repeat(np.arange(count), rng.integers(1, 30, count))
    X = rng.uniform(0, 10, (len(task), dim))
    score = X @ rng.normal(0, 1, dim) + rng.normal(0, 2, count)[task] + rng.normal(0, 1, len(task))
    if not classes:
        return X, score, task, {**dict.fromkeys(range(dim), (0, 100)), "y": (-200, 200)}
    cuts = np.quantile(score, np.arange(1, classes) / classes)
    book = {**dict.fromkeys(range(dim), (0, 100)), "y": list(range(classes))}
    return X, np.searchsorted(cuts, score), task, book


def fitted(kind: str, name: str, epsilon: float, **settings: Any) -> dict[str, str]:
    X, y, task, book = table(name)
    settings |= {"epsilon": epsilon, "random_state": 3} if epsilon else {}
    estimator = getattr(estimators, kind)(bounds=book, **settings).fit(X, y, tasks=task)
    return of_estimator(estimator, X, task)


def of_estimator(estimator: Any, X: Any, task: Any) -> dict[str, str]:
    predict = getattr(estimator, "predict_proba", estimator.predict)
    found = {"models": digest([predict(X, tasks=task)])}
    board = getattr(estimator, "billboard_", None)
    return found if board is None else of_run(board, {}) | found


def in_groups() -> dict[str, str]:
    X, y, task, book = table("chem97")
    label = np.where(np.asarray(task) % 3 == 0, "north", "south")
    estimator = estimators.SharedPriorRegressor(bounds=book, epsilon=4.0, random_state=3)
    estimator.fit(X, y, tasks=task, groups=label)
    return of_estimator(estimator, X, task) | {"summary": digest([str(estimator.summary()).encode()])}


def next_year() -> dict[str, str]:
    X, y, task, book = table("made")
    earlier = estimators.SharedPriorRegressor(bounds=book, epsilon=2.0, random_state=3).fit(X, y, tasks=task)
    later = estimators.SharedPriorRegressor(bounds=book, epsilon=0.5, random_state=4, start_from=earlier)
    later.fit(X, y + 1.0, tasks=task)
    return of_estimator(later, X, task) | {"summary": digest([str(later.summary()).encode()])}


def plan_and_tasks(kind: str) -> tuple[Any, Any]:
    X, y, task, book = table("chem97")
    estimator = getattr(estimators, kind)(bounds=book)
    tasks = cl.Tasks.from_arrays(book.encode(X), book.encode_target(y), task)
    return estimator.plan(len(tasks)), tasks


def on_engine(kind: str, make: Callable[[], Any]) -> dict[str, str]:
    plan, tasks = plan_and_tasks(kind)
    done = cl.run(plan, tasks, random_state=3, engine=make())
    return of_run(done.board, done.private.models)


def on_nodes(kind: str) -> dict[str, str]:
    """Each task a node in this process, with a folder, keys and a link of its own."""
    sys.path.append(str(Path(__file__).parent / "engines"))
    from node_helpers import InProcess, asked, make_nodes

    whole, tasks = plan_and_tasks(kind)
    tasks = tasks.select(range(6))
    tasks = cl.Tasks.from_list(
        [tasks.only(name).X for name in tasks.ids], [tasks.only(name).y for name in tasks.ids], list("abcdef")
    )
    plan = cl.Plan(whole.algorithm, n_tasks=6, delta=1e-2).calibrate(3.0)
    with tempfile.TemporaryDirectory() as folder:
        nodes = make_nodes(Path(folder), plan, tasks)
        done = asked(InProcess(nodes), plan, tasks.roster)
        models = {
            f"{name} {key}": array
            for name, node in nodes.items()
            for key, array in node.model("exam-2026").items()
        }
    return of_run(done.board, models)


def network(engine: Callable[[], Any]) -> dict[str, str]:
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    rng = np.random.default_rng(2)
    task = np.repeat(np.arange(20), rng.integers(4, 12, 20))
    X = rng.normal(size=(len(task), 6)).astype(np.float32)
    steps = cl.learners.Descent(lr=0.1, batch=4, steps=3)
    algorithm = cl.algorithms.Personalized(cl.learners.Module(net), steps, rounds=4)
    plan = cl.Plan(algorithm, sampling=cl.sampling.Poisson(0.6), n_tasks=20).calibrate(4.0)
    tasks = cl.Tasks.from_arrays(X, rng.integers(0, 3, len(task)), task)
    done = cl.run(plan, tasks, random_state=3, engine=engine())
    return of_run(done.board, done.private.models)


def stream() -> dict[str, str]:
    rng = np.random.default_rng(4)
    algorithm = cl.algorithms.FTMRL(
        cl.learners.Convex(cl.learners.LeastSquares(3)), cl.learners.ExactSolver(), rounds=12
    )
    plan = cl.Plan(algorithm, cl.mechanisms.Toeplitz(), cl.sampling.InOrder(), n_tasks=12).calibrate(3.0)
    joined = cl.engines.TaskStream(plan, random_state=3)
    models = {}
    for i in range(12):
        X = rng.uniform(-0.5, 0.5, (5, 3))
        for key, array in joined.join(f"t{i}", X, X.sum(axis=1)).items():
            models[f"{i:02} {key}"] = array
    return of_run(joined.finish(), models)


def vote() -> dict[str, str]:
    X, y, task, book = table("chem97")
    tasks = cl.Tasks.from_arrays(book.encode(X), book.encode_target(y), task)
    loss = cl.learners.LeastSquares(book.width)
    grid = tuple(cl.algorithms.MeanRegularized(loss, lam=lam, rounds=3) for lam in (0.01, 0.1, 1.0))
    election = cl.tune.Vote(grid, loss, n_tasks=len(tasks), epsilon=3.0)
    choice = cl.tune.vote(election, tasks, random_state=3)
    found = of_run(choice.run.board, choice.run.private.models)
    return found | {"scores": digest([choice.scores])}


def cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    epsilons = {family: (0.0,) if family in FREE else EPSILONS for family in FAMILIES}
    jobs = [(family, epsilon) for family in FAMILIES for epsilon in epsilons[family]]
    for (family, epsilon), name in product(jobs, ("school", "chem97", "made")):
        found[f"{family}Regressor, {name}, eps {epsilon:g}"] = partial(
            fitted, f"{family}Regressor", name, epsilon
        )
    for (family, epsilon), name in product(jobs, ("landmine", "chem97_high", "three classes")):
        found[f"{family}Classifier, {name}, eps {epsilon:g}"] = partial(
            fitted, f"{family}Classifier", name, epsilon
        )
    for name, (kind, settings) in SETTINGS.items():
        data = "made" if kind.endswith("Regressor") else "three classes"
        found[f"{kind}, {name}"] = partial(fitted, kind, data, 2.0, **settings)
    found |= {"SharedPriorRegressor, in groups": in_groups, "SharedPriorRegressor, next year": next_year}
    for kind in ("SharedPriorRegressor", "MeanRegularizedRegressor", "LowRankRegressor"):
        found[f"{kind}, Local"] = partial(on_engine, kind, cl.engines.Local)
        found[f"{kind}, Local, one task at a time"] = partial(
            on_engine, kind, partial(cl.engines.Local, block=1)
        )
        found[f"{kind}, Cluster"] = partial(on_engine, kind, partial(cl.engines.Cluster, 2))
        found[f"{kind}, nodes"] = partial(on_nodes, kind)
    found["network, Local"] = partial(network, cl.engines.Local)
    found["network, Batched"] = partial(network, partial(cl.engines.Batched, "cpu"))
    return found | {"stream": stream, "vote": vote}


def result(name: str) -> tuple[str, dict[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return name, cases()[name]()
        except Exception as error:  # a case that cannot run is compared, too: it must fail alike
            return name, {"error": f"{type(error).__name__}: {error}"[:200]}


def results(words: list[str]) -> dict[str, dict[str, str]]:
    chosen = [name for name in cases() if all(word in name for word in words)]
    cluster = [name for name in chosen if name.endswith("Cluster")]  # each starts Ray: one after another
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        found = dict(pool.map(result, [name for name in chosen if name not in cluster]))
    return found | dict(map(result, cluster))


def of_commit(commit: str, words: list[str]) -> dict[str, dict[str, str]]:
    """Run the program of a commit by its own code, in a copy."""
    with tempfile.TemporaryDirectory() as folder:
        tree, out = Path(folder) / "tree", Path(folder) / "found.json"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(tree), commit], cwd=ROOT, check=True)
        try:
            if not (tree / "tests" / "gate.py").exists():
                sys.exit(f"{commit} is older than this program: compare with a later commit.")
            environment = os.environ | {"PYTHONPATH": str(tree / "src"), "CLOISTER_DATA": str(DATA.resolve())}
            command = [sys.executable, str(tree / "tests" / "gate.py"), "--out", str(out), *words]
            subprocess.run(command, cwd=tree, env=environment, check=True)
            return json.loads(out.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("words", nargs="*", help="only cases whose names have all of these")
    parser.add_argument("--against", metavar="COMMIT", help="compare with the code of a commit")
    parser.add_argument("--out", type=Path, help="write the hashes to a file")
    chosen = parser.parse_args()
    here = results(chosen.words)
    failed = [name for name, found in here.items() if "error" in found]
    print(f"{len(here)} cases, {len(failed)} could not run{': ' * bool(failed)}{', '.join(failed)}")
    if chosen.out:
        chosen.out.write_text(json.dumps(here, indent=0) + "\n", encoding="utf-8")
    if not chosen.against:
        return 0
    there = of_commit(chosen.against, chosen.words)
    moved = len(failed)
    for name in sorted(here.keys() | there.keys()):
        now, then = here.get(name, {}), there.get(name, {})
        differ = [key for key in sorted(now.keys() | then.keys()) if now.get(key) != then.get(key)]
        moved += bool(set(differ) - {"head"}) and name not in failed
        if differ:
            print(f"{name}: {', '.join(differ)} differ")
    heads = sum(here[name].get("head") == there.get(name, {}).get("head") for name in here)
    print(f"{len(here) - moved} of {len(here)} have the same releases and models, {heads} the same head")
    return int(moved > 0)


if __name__ == "__main__":
    sys.exit(main())
