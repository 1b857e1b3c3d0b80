"""Records as senders where their tasks are apart: at nodes, with and without noise of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from node_helpers import BUDGET, OPERATOR, SEED, Recorded, log_of, open_nodes

from cloister import Plan, Tasks, Trust, Unit, run
from cloister.algorithms import PooledPrior
from cloister.audit.zoo.plans import GramOfRecords
from cloister.channel import Channel, Outer
from cloister.core.channel import GRID
from cloister.engines import RemoteNodes
from cloister.errors import InputError, PrivateDataError
from cloister.learners import Classification
from cloister.nodes import NodeFolder, NodeSettings
from cloister.nodes.identity import Identity
from cloister.nodes.messages import Reply

pytestmark = pytest.mark.usefixtures("unsynced")
TYPES = [GramOfRecords, Channel, Outer]
SIZES = [1, 7, 30]
X = np.random.default_rng(0).normal(size=(sum(SIZES), 2))
TASKS = Tasks.from_arrays(X, X.sum(axis=1), np.repeat(["elm", "oak", "yew"], SIZES))
ALGORITHM = GramOfRecords(Channel(3, clip=0.5, lift=Outer()))
CLASSES = PooledPrior(Classification(2))


def plan_of(trust=None, rows=40, unit=None, algorithm=ALGORITHM):
    trust, unit = trust or Trust.curator(), unit or Unit.record(rows)
    plan = Plan(algorithm, n_tasks=3, unit=unit, trust=trust, delta=1e-2)
    return plan.calibrate(3.0)


def make(folder, plan, unit="record", tasks=TASKS):
    """Make nodes whose ledgers are kept for each record; return them and their keys."""
    names, keys = tasks.ids.tolist(), {}
    for name in names:
        NodeFolder.create(folder / name, NodeSettings(name, OPERATOR.public.hex()), **BUDGET, unit=unit)
        keys[name] = Identity.create(folder / name).public
    signed = OPERATOR.sign_roster(plan.fingerprint, TASKS.roster, "", tuple(keys.values()))
    for name in names:
        NodeFolder(folder / name).approve(plan, tasks.only(name), roster=signed, trial=True)
    return open_nodes(folder, tasks, TYPES), keys


def over(link, plan, keys, told):
    engine = RemoteNodes(link, OPERATOR, deadline=20.0, keys=keys, log=told.append)
    return run(plan, TASKS.roster, random_state=SEED, engine=engine)


@pytest.mark.parametrize("algorithm", [ALGORITHM, CLASSES], ids=("Gram", "classes"))
def test_nodes_send_sums_of_their_records_and_the_board_is_that_of_one_machine(algorithm, tmp_path):
    plan, tasks = plan_of(algorithm=algorithm), replace(TASKS, y=(TASKS.y > 0) * 1.0)
    nodes, keys = make(tmp_path, plan, tasks=tasks)
    link, told = Recorded(nodes), []
    done = over(link, plan, keys, told)
    assert not told
    assert done.board.head == run(plan, tasks, random_state=SEED).board.head
    rows = [Reply.from_bytes(reply).row for _, _, reply in link.replies]
    assert {row.size for row in rows if row is not None} == {plan.rounds[0].channels[0].size}
    assert nodes["elm"].home.ledger.spent == pytest.approx(3.0, abs=1e-3)


@pytest.mark.parametrize("trust", [Trust.silo(), Trust.secure_sum()], ids=str)
def test_nodes_add_noise_to_their_sums(trust, tmp_path):
    plan, told = plan_of(trust), []
    nodes, keys = make(tmp_path, plan)
    done = over(Recorded(nodes), plan, keys, told)
    bare = ALGORITHM.only.total(np.column_stack([TASKS.X, TASKS.y]))
    release = done.board.releases[0]
    assert np.abs(release.value - bare).max() < 6 * release.noise
    assert not told
    plan.check(done.board)


def test_a_sum_that_no_records_have_counts_as_zero(tmp_path):
    plan, told = plan_of(), []
    nodes, keys = make(tmp_path, plan)

    def larger(round, name, reply):
        said = Reply.from_bytes(reply)
        if name == "oak" and said.row is not None:
            row = said.row.copy()
            row[0] = 41 * GRID**2
            reply = Reply(said.kind, said.run, said.round, said.head, said.records, row).to_bytes()
        return [(name, reply)]

    done = over(Recorded(nodes, larger), plan, keys, told)
    assert "larger than that of 40 messages can be" in " ".join(told)
    rest = TASKS.select([0, 2])
    bare = ALGORITHM.only.total(np.column_stack([rest.X, rest.y]))
    assert np.abs(done.board.releases[0].value - bare).max() < 6 * done.board.releases[0].noise


def test_an_owner_whose_rows_do_not_fit_the_plan_is_told_and_nobody_else(tmp_path):
    with pytest.raises(PrivateDataError, match="at most 29 records"):
        make(tmp_path / "few", plan_of(rows=29))
    with pytest.raises(InputError, match="whose each row is nobody has said"):
        make(tmp_path / "whose", plan_of(unit=Unit.person(40, most=2)))


def test_persons_at_nodes_are_those_of_one_machine(tmp_path):
    plan, told = plan_of(unit=Unit.person(40, most=2)), []
    person = np.arange(sum(SIZES)) // 3
    tasks = Tasks.from_arrays(X, X.sum(axis=1), np.repeat(TASKS.ids, SIZES), person=person)
    nodes, keys = make(tmp_path, plan, unit="person", tasks=tasks)
    done = over(Recorded(nodes), plan, keys, told)
    assert not told
    assert done.board.head == run(plan, tasks, random_state=SEED).board.head
    assert done.board.releases[0].noise == pytest.approx(2 * plan_of().noise(0, ALGORITHM.only))


def test_an_account_of_tasks_refuses_at_home(tmp_path):
    plan, told = plan_of(), []
    nodes, keys = make(tmp_path, plan, unit="task")
    over(Recorded(nodes), plan, keys, told)
    assert "kept for each task" in log_of(nodes["elm"])
    assert not nodes["elm"].home.ledger.history
