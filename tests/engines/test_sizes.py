"""How many rows a task has, and whether it takes part, shows nowhere but in its own message: to the bit."""

import numpy as np
import pytest

from cloister import Plan, Tasks, replay, run
from cloister.algorithms import LowRank, Mean, MeanRegularized, MetaSGD, SharedPrior, Subspace
from cloister.engines import Local
from cloister.learners import Classification, Convex, ExactSolver, LeastSquares, Regression
from cloister.mechanisms import NoNoise

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from cloister.algorithms import Ditto, FedAvg, FineTuning, Personalized  # noqa: E402
from cloister.engines import Batched  # noqa: E402
from cloister.learners import Descent, Module  # noqa: E402

M, VICTIM = 30, 11
OTHERS = np.arange(M) != VICTIM


def make_tasks(rows, scale=1.0, classes=False, features=6):
    """Return tasks of 5 to 40 rows, the same whatever the victim's number of rows."""
    sizes = np.random.default_rng(1).integers(5, 41, M)
    sizes[VICTIM] = rows
    X, y = [], []
    for task, size in enumerate(sizes):
        rng = np.random.default_rng(task)
        X.append(scale * rng.uniform(-0.5, 0.5, (size, features)))
        y.append(rng.integers(0, 3, size) if classes else rng.uniform(-0.5, 0.5, size))
    return Tasks.from_list(X, y)


def network():
    torch.manual_seed(0)
    return Module(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)))


def assert_others_untouched(plan, first, second, engine, coins=(None, None)):
    board = run(plan, first, random_state=0, engine=engine).board
    one, two = (
        replay(plan, board, tasks, coins=c, engine=engine)
        for tasks, c in zip((first, second), coins, strict=True)
    )
    assert any((one[name][VICTIM] != two[name][VICTIM]).any() for name in one)
    for name in one:
        np.testing.assert_array_equal(one[name][OTHERS], two[name][OTHERS])


@pytest.mark.parametrize("rows", [1, 9, 60])
@pytest.mark.parametrize(
    "algorithm",
    [
        SharedPrior(Regression(6)),
        SharedPrior(Regression(6), Subspace()),
        MeanRegularized(LeastSquares(6), rounds=3),
        LowRank(LeastSquares(6), rounds=3),
        MetaSGD(Convex(LeastSquares(6)), ExactSolver(), rounds=3),
    ],
    ids=["prior", "subspace", "mean", "low rank", "meta"],
)
def test_linear_models(algorithm, rows):
    assert_others_untouched(Plan(algorithm, NoNoise(), n_tasks=M), make_tasks(20), make_tasks(rows), Local())


@pytest.mark.parametrize("rows", [1, 60])
def test_classes(rows):
    plan = Plan(SharedPrior(Classification(6, 3), Mean()), NoNoise(), n_tasks=M)
    assert_others_untouched(plan, make_tasks(20, classes=True), make_tasks(rows, classes=True), Local())


#: With 16 rows products are MKL's, whose last bits depend on where in memory a task's numbers are: such tasks
#: are kept apart to the bit only one at a time, or with MKL_CBWR=AUTO,STRICT.
ENGINES = [(Local(), 4), (Local(), None), (Batched("cpu"), 4), (Batched("cpu", block=4), None),
           (Batched("cpu", block=1), 16)]  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "batch", "rows"), [(*ENGINES[2], 1), (*ENGINES[2], 9), *((*each, 60) for each in ENGINES)]
)
def test_networks(engine, batch, rows):
    solver = Descent(0.2, batch=batch, epochs=2, momentum=0.5)
    algorithm = Personalized(network(), solver, rounds=2, finetune=FineTuning(Descent(0.1, steps=3)))
    first, second = make_tasks(20, classes=True), make_tasks(rows, classes=True)
    assert_others_untouched(Plan(algorithm, NoNoise(), n_tasks=M), first, second, engine)


@pytest.mark.parametrize("engine", [Local(), Batched("cpu")], ids=repr)
def test_whether_a_task_took_part_does_not_show_in_the_models_of_others(engine):
    """Otherwise a coin that is asserted to be hidden could be read off the last bits."""
    plan = Plan(Ditto(network(), Descent(0.2, batch=4), rounds=3), NoNoise(), n_tasks=M)
    tasks = make_tasks(20, classes=True)
    took = np.random.default_rng(0).random((3, M)) < 0.5
    took[1, VICTIM] = True
    stayed = took.copy()
    stayed[1, VICTIM] = False
    assert_others_untouched(plan, tasks, tasks, engine, (took, stayed))


@pytest.mark.parametrize("engine", [Local(), Batched("cpu")], ids=repr)
def test_hostile_others_cannot_feel_how_many_rows_a_task_has(engine):
    """Steps that a task does not take must not spoil it: 0 times infinity would."""
    plan = Plan(FedAvg(network(), Descent(0.2, batch=5, epochs=1), clip=1.0, rounds=1), NoNoise(), n_tasks=M)
    sums = []
    for rows in (5, 40):
        tasks = make_tasks(rows, scale=1e30, classes=True)
        sums.append(run(plan, tasks, random_state=0, engine=engine).board.releases[0].value)
    assert np.linalg.norm(sums[0] - sums[1]) <= 2


@pytest.mark.parametrize("rows", [(11, 12), (5, 40)])
def test_absurd_rows_of_others_take_the_same_form(rows):
    """Whichever of two formulas serves a task must not depend on the sizes of others."""
    plan = Plan(MetaSGD(Convex(LeastSquares(12)), ExactSolver(), rounds=1), NoNoise(), n_tasks=M)
    sums = []
    for count in rows:
        tasks = make_tasks(count, scale=1e100, features=12)
        absurd = Tasks(tasks.ids, tasks.X, tasks.y * 1e250, tasks.weight, tasks.offsets)
        sums.append(run(plan, absurd, random_state=0).board.releases[0].value)
    assert np.linalg.norm(sums[0] - sums[1]) <= 2


def test_threads_do_not_borrow_each_others_parameters():
    plan = Plan(Personalized(network(), Descent(0.2, batch=4, epochs=3), rounds=3), NoNoise(), n_tasks=M)
    tasks = make_tasks(20, classes=True)
    one, two = (run(plan, tasks, random_state=0, engine=Local(threads=n)).board.head for n in (1, 4))
    assert one == two
