"""What speaks against a guarantee reaches it, and the ledger, on every path."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from cloister import Guarantee, Ledger, Plan, SharedPriorRegressor, Tasks, evaluate, run
from cloister.algorithms import Independent, MeanRegularized
from cloister.cli import app
from cloister.engines import Local, run_partition
from cloister.engines.devices import MultiDevice
from cloister.errors import BillboardError, InputError, LedgerError
from cloister.estimators import LowRankRegressor, SingleTaskRegressor
from cloister.learners import LeastSquares, Regression
from cloister.mechanisms import Gaussian, L2Laplace, Toeplitz, Wishart
from cloister.privacy.caveats import FLOATING_POINT, SEEDED, SHARED_DEVICE, Caveat, Grade
from cloister.privacy.events import Cost, GaussianEvent
from cloister.privacy.sampling import Everyone
from cloister.tables.codebook import FROM_DATA
from cloister.tune import RepeatAndSelect, Vote, fit_best, repeat_and_select, vote

M = 60
LEAKY = Caveat(Grade.VOID, "the bounds were read from the data")
RNG = np.random.default_rng(0)
X, Y, SCHOOL = RNG.uniform(-1, 1, (8 * M, 2)), RNG.uniform(-1, 1, 8 * M), np.repeat(np.arange(M), 8)
TASKS = Tasks.from_arrays(X, Y, SCHOOL)
LOSS = LeastSquares(2)
ALGORITHM = MeanRegularized(LOSS, rounds=2)


def plan(mechanism=None, caveats=(LEAKY.reason,), algorithm=ALGORITHM):
    made = Plan(algorithm, mechanism or Gaussian(), n_tasks=M, caveats=caveats)
    return made.calibrate(0.3) if made.has_rounds else made


class Doubtful(Local):
    """An engine like Local, with a doubt of its own."""

    def doubts_of(self, plan):
        return (SHARED_DEVICE,)


def accuracy(y, outputs):
    return float(np.mean(np.abs(y - outputs) < 1))


def by_run(ledger, seed):
    return run(plan(), TASKS, random_state=seed, ledger=ledger).guarantee


def by_vote(ledger, seed):
    grid = (Independent(Regression(2, intercept=False)), ALGORITHM)
    election = Vote(grid, LOSS, n_tasks=M, epsilon=0.5, caveats=(LEAKY.reason,))
    return vote(election, TASKS, ledger=ledger, random_state=seed).guarantee


def by_selection(ledger, seed):
    selection = RepeatAndSelect(
        (ALGORITHM,) * 2, LOSS, n_tasks=M, epsilon=8.0, caveats=(LEAKY.reason,), runs=2
    )
    guarantee = repeat_and_select(selection, TASKS, random_state=seed).guarantee
    ledger.charge("by hand", Cost((GaussianEvent(0.1),), Everyone(), M), doubts=guarantee.doubts)
    return guarantee


def by_clusters(ledger, seed):
    places = {school: school % 2 for school in range(M)}
    return run_partition(plan(), TASKS, places, random_state=seed, ledger=ledger).guarantee


def by_evaluation(ledger, seed):
    done = run(plan(), TASKS, random_state=seed)
    return evaluate(done, TASKS, accuracy, epsilon=0.2, ledger=ledger).guarantee


def by_estimator(ledger, seed):
    model = SharedPriorRegressor(bounds="data", epsilon=0.5, ledger=ledger, random_state=seed)
    return model.fit(X, Y, tasks=SCHOOL).guarantee_


def by_best_fit(ledger, seed):
    grid = [
        LowRankRegressor(lam=lam, bounds="data", epsilon=0.5, ledger=ledger, random_state=seed)
        for lam in (0.1, 1.0)
    ]
    return fit_best(grid, X, Y, tasks=SCHOOL)[0].guarantee_


PATHS = [by_run, by_vote, by_selection, by_clusters, by_evaluation, by_estimator, by_best_fit]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("seed", [None, 7])
def test_doubts_reach_the_guarantee_and_the_ledger(path, seed):
    ledger = Ledger(10.0, 1e-3)
    guarantee = path(ledger, seed)
    reasons = " ".join(guarantee.reasons)
    assert LEAKY.reason in reasons or FROM_DATA in reasons
    assert (SEEDED.reason in reasons) == (seed is not None)
    assert not guarantee.holds
    assert ledger.history[0].doubts == guarantee.doubts


@pytest.mark.parametrize(
    "mechanism",
    [Gaussian(), Toeplitz(), Gaussian(exact=False), Toeplitz(exact=False), L2Laplace(), Wishart(300)],
)
def test_noise_in_floating_point_holds_and_is_not_proven_to_the_last_bit(mechanism):
    exact = getattr(mechanism, "exact", False)
    assert mechanism.doubts == (() if exact else (FLOATING_POINT,))
    if not isinstance(mechanism, Wishart):
        guarantee = plan(mechanism, caveats=()).guarantee
        assert (guarantee.holds, guarantee.proven_to_the_last_bit) == (True, exact)


@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: MultiDevice((Local(), e))])
def test_an_engines_doubts_reach_board_guarantee_and_ledger(wrap, tmp_path):
    ledger, mine = Ledger(3.0, 1e-3), plan(caveats=())
    done = run(mine, TASKS, ledger=ledger, engine=wrap(Doubtful()))
    assert done.guarantee.doubts == ledger.history[0].doubts == (SHARED_DEVICE,)
    assert (done.guarantee.holds, done.guarantee.proven_to_the_last_bit) == (True, False)
    read = type(done.board).load(done.board.save(tmp_path / "board"))
    assert mine.guarantee_on(read) == replace(done.guarantee, all_runs=None)
    assert done.guarantee.all_runs == ledger.balance.all_runs
    plain = run(mine, TASKS, engine=wrap(Local()))
    assert plain.guarantee.proven_to_the_last_bit
    alone = run(
        plan(algorithm=Independent(Regression(2, intercept=False)), caveats=()), TASKS, engine=Doubtful()
    )
    assert alone.guarantee.doubts == (SHARED_DEVICE,)  # models of other tasks may tell, though nothing leaves


def test_an_engines_doubts_are_charged_with_clusters():
    ledger, places = Ledger(3.0, 1e-3), {school: school % 2 for school in range(M)}
    done = run_partition(plan(caveats=()), TASKS, places, ledger=ledger, engine=Doubtful())
    assert done.guarantee.doubts == ledger.history[0].doubts == (SHARED_DEVICE,)


def test_batched_tasks_share_kernels_unless_each_is_a_block_of_its_own_on_a_processor():
    torch = pytest.importorskip("torch")
    from cloister.algorithms import FedAvg
    from cloister.engines import Batched
    from cloister.learners import Descent, Module

    net = Module(torch.nn.Linear(2, 2))
    network = Plan(FedAvg(net, Descent(0.1), clip=1.0, rounds=1), Gaussian(1.0), n_tasks=M)
    for engine in (Batched("cuda"), Batched("cuda:1", block=1), Batched("cpu"), Batched("cpu", block=2)):
        assert engine.doubts_of(network) == (SHARED_DEVICE,)
    assert Batched("cpu", block=1).doubts_of(network) == ()
    assert Local().doubts_of(network) == (SHARED_DEVICE,)
    assert Local().doubts_of(plan()) == ()


def test_a_run_does_not_go_on_with_a_doubt_that_its_ledger_was_not_told(tmp_path):
    """Neither through its journal nor through its key; it goes on where the doubt was recorded."""
    ledger, mine = Ledger(3.0, 1e-3), plan(caveats=())

    def stop(posted):
        raise KeyboardInterrupt

    for engine in (Local(), Doubtful()):
        folder = tmp_path / type(engine).__name__
        with pytest.raises(KeyboardInterrupt):
            run(mine, TASKS, ledger=ledger, engine=engine, journal=folder, progress=stop)
    with pytest.raises(InputError, match="begun on another engine"):
        run(mine, TASKS, ledger=ledger, engine=Doubtful(), journal=tmp_path / "Local")
    done = run(mine, TASKS, ledger=ledger, engine=Doubtful(), journal=tmp_path / "Doubtful")
    assert done.guarantee.doubts == (SHARED_DEVICE,)
    assert len(ledger.history) == 2
    cost = mine.cost
    ledger.charge("p", cost, run="7", doubts=(FLOATING_POINT,))
    ledger.charge("p", cost, run="7", doubts=(SHARED_DEVICE,))  # of the same grade
    with pytest.raises(LedgerError, match="without a doubt that it has now: void: the noise is drawn from a"):
        ledger.charge("p", cost, run="7", doubts=(FLOATING_POINT, SEEDED))


def test_single_tasks_with_bounds_from_the_data_do_not_hold():
    seen = SingleTaskRegressor(bounds="data").fit(X, Y, tasks=SCHOOL).guarantee_
    assert (seen.epsilon, seen.holds, seen.doubts) == (0.0, False, (Caveat(Grade.VOID, FROM_DATA),))


def test_a_saved_folder_and_verify_keep_every_doubt(tmp_path):
    model = SharedPriorRegressor(bounds="data", epsilon=0.5, random_state=7).fit(X, Y, tasks=SCHOOL)
    model.save(tmp_path / "run")
    document = json.loads((tmp_path / "run" / "guarantee.json").read_text())
    assert Guarantee.from_dict(document) == model.guarantee_
    assert [doubt["grade"] for doubt in document["doubts"]] == ["void", "void"]
    assert "fit the codebook" in document["domain"]
    told = CliRunner().invoke(app, ["verify", str(tmp_path / "run")])
    assert (told.exit_code, "does NOT hold" in told.output) == (0, True)
    assert FROM_DATA in " ".join(told.output.split())
    for doubts in ([], document["doubts"][:1]):  # one that is left out is missed
        (tmp_path / "run" / "guarantee.json").write_text(json.dumps({**document, "doubts": doubts}))
        told = CliRunner().invoke(app, ["verify", str(tmp_path / "run")])
        assert (told.exit_code, "it says doubts" in told.output) == (1, True)


def test_verify_wants_a_plan_to_say_that_its_bounds_come_from_the_data(tmp_path):
    model = SharedPriorRegressor(bounds="data", epsilon=0.5, random_state=7).fit(X, Y, tasks=SCHOOL)
    quiet = replace(model.plan_, caveats=())
    done = run(quiet, Tasks.from_arrays(model.codebook_.encode(X), Y, SCHOOL), random_state=7)
    folder = model.save(tmp_path / "run")
    quiet.save(folder / "plan.toml")
    done.board.save(folder / "board")
    (folder / "guarantee.json").write_text(done.guarantee.to_json())
    (folder / "guarantee.txt").write_text(str(done.guarantee))
    told = CliRunner().invoke(app, ["verify", str(folder)])
    assert told.exit_code == 1
    assert "the plan does not say so" in " ".join(told.output.split())


def test_no_board_claims_noise_or_doubts_that_it_has_not(tmp_path):
    mine = plan(caveats=())
    board = run(mine, TASKS).board
    with pytest.raises(BillboardError, match="claims noise"):
        mine.noise_on(replace(board, noise="none"))
    data = run(mine, TASKS, engine=Doubtful()).board.save(tmp_path / "board").read_bytes()
    (tmp_path / "board").write_bytes(data.replace(b"tasks share", b"tasks spare"))
    with pytest.raises(BillboardError, match="was edited"):
        type(board).load(tmp_path / "board")


def test_a_score_of_models_without_privacy_does_not_hold():
    from cloister.mechanisms import NoNoise

    done = run(Plan(ALGORITHM, NoNoise(), n_tasks=M), TASKS)
    told = evaluate(done, TASKS, accuracy, epsilon=0.2).guarantee
    assert math.isfinite(told.epsilon)
    assert told.reasons == ("of the run that made the models: its releases have no noise",)
