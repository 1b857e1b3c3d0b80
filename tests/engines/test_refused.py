"""What is refused costs nothing and destroys nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cloister as cl

M = 20
RNG = np.random.default_rng(0)
X = RNG.uniform(-0.5, 0.5, (3 * M, 2))
TASKS = cl.Tasks.from_arrays(X, X.sum(axis=1), np.repeat(np.arange(M), 3))
PLAN = cl.Plan(cl.algorithms.MeanRegularized(cl.learners.LeastSquares(2), rounds=4), n_tasks=M).calibrate(1.0)


class Stop(Exception):
    """As if the process had been killed."""


def begin(folder, rounds=2, **options):
    def stop(posted):
        if posted.done == rounds:
            raise Stop

    with pytest.raises(Stop):
        cl.run(PLAN, TASKS, journal=folder, progress=stop, **options)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refusals():
    """Ways to go on that are refused, with a ledger at hand."""
    wider = replace(TASKS, X=np.c_[TASKS.X, TASKS.X])
    other = replace(TASKS, y=-TASKS.y)
    return {
        "a ledger that cannot afford it": (PLAN, TASKS, cl.Ledger(0.1, 1e-3), {}),
        "a ledger of other tasks": (PLAN, TASKS, cl.Ledger(9.0, 1e-3, n_tasks=M + 1), {}),
        "other data": (PLAN, other, cl.Ledger(9.0, 1e-3), {}),
        "more columns": (PLAN, wider, cl.Ledger(9.0, 1e-3), {}),
        "fewer tasks": (PLAN, TASKS.select(np.arange(5)), cl.Ledger(9.0, 1e-3), {}),
        "another plan": (replace(PLAN, delta=1e-4), TASKS, cl.Ledger(9.0, 1e-3), {}),
        "a seed": (PLAN, TASKS, cl.Ledger(9.0, 1e-3), {"random_state": 1}),
    }


@pytest.mark.parametrize("why", refusals())
def test_a_refusal_leaves_a_run_under_way_as_it_was(tmp_path, why):
    """It goes on to the board it would have had: noise that was seen is never drawn again."""
    kept = begin(tmp_path / "run")
    plan, tasks, ledger, options = refusals()[why]
    with pytest.raises(cl.CloisterError):
        cl.run(plan, tasks, journal=tmp_path / "run", ledger=ledger, **options)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == kept
    assert ledger.history == ()
    done = cl.run(PLAN, TASKS, journal=tmp_path / "run")
    assert (tmp_path / "run" / "board").read_bytes().startswith(kept["board"])
    assert done.board.complete


@pytest.mark.parametrize("why", ["a ledger that cannot afford it", "a ledger of other tasks"])
def test_a_refusal_leaves_nothing_of_a_run_that_had_not_begun(tmp_path, why):
    plan, tasks, ledger, options = refusals()[why]
    with pytest.raises(cl.CloisterError):
        cl.run(plan, tasks, journal=tmp_path / "run", ledger=ledger, **options)
    assert not (tmp_path / "run").exists()


class Refusing(cl.engines.Local):
    """An engine that cannot compute on anything."""

    def workers(self, plan, tasks, seeds):
        raise cl.errors.PlanError("Not here.")


def test_nor_does_the_refusal_of_an_engine(tmp_path):
    with pytest.raises(cl.errors.PlanError, match="Not here"):
        cl.run(PLAN, TASKS, journal=tmp_path / "run", engine=Refusing())
    assert not (tmp_path / "run").exists()
    kept = begin(tmp_path / "run")
    with pytest.raises(cl.errors.PlanError, match="Not here"):
        cl.run(PLAN, TASKS, journal=tmp_path / "run", engine=Refusing())
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == kept


class Drifting(cl.algorithms.MeanRegularized):
    """Declares one clip, and uses another once the board says anything: no trial beforehand shows it."""

    def channel(self, board):
        declared, heard = super().channel(board), board is not None and board["mean"].any()
        return replace(declared, clip=2 * declared.clip) if heard else declared


def test_a_channel_that_was_not_priced_is_refused_in_any_round(tmp_path):
    """Before the round's release: what is posted by then was declared and paid for."""
    plan = cl.Plan(Drifting(cl.learners.LeastSquares(2), rounds=4), n_tasks=M).calibrate(1.0)
    with pytest.raises(cl.errors.AlgorithmError, match="did not declare"):
        cl.run(plan, TASKS, journal=tmp_path / "run")
    assert cl.Billboard.recover(tmp_path / "run" / "board").rounds == 1


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"progress": True}, "progress must be a function"),
        ({"save": "folder"}, "save must be a function"),
        ({"engine": "cpu"}, r"Write engine=cloister.engines.Local\(\)"),
        ({"engine": cl.engines.Local}, "engine must be an engine"),
        ({"tasks": (X, X)}, "Tasks.from_arrays"),
    ],
)
def test_what_is_no_engine_function_or_tasks_is_refused_before_the_charge(given, sentence):
    ledger = cl.Ledger(9.0, 1e-3)
    with pytest.raises(cl.errors.InputError, match=sentence):
        cl.run(PLAN, **({"tasks": TASKS, "ledger": ledger} | given))
    assert not ledger.history


def test_a_device_that_torch_does_not_know_is_refused_when_it_is_named():
    pytest.importorskip("torch", reason="needs the extra torch")
    with pytest.raises(cl.errors.PlanError, match='must be "cuda"'):
        cl.engines.Batched("gpu")
