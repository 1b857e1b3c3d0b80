"""Nodes and their curator: the board and the models of one machine, whatever breaks off."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from node_helpers import (
    BUDGET,
    OPERATOR,
    PLAN,
    RUN,
    TASKS,
    M,
    Recorded,
    asked,
    assert_same_models,
    here,
    log_of,
    make_nodes,
    make_tasks,
    open_nodes,
)

from cloister import Plan, replay
from cloister.algorithms import GroupMeans, LowRank, Mean, MeanRegularized, SharedPrior
from cloister.core.roster import Groups
from cloister.core.spec import Target
from cloister.engines import RemoteNodes
from cloister.errors import InputError
from cloister.learners import CountRegression, LeastSquares, Regression
from cloister.mechanisms import Toeplitz
from cloister.nodes import InProcess, Node, NodeFolder, NodeSettings, Reply, ReplyKind
from cloister.privacy.caveats import SHARED_DEVICE
from cloister.sampling import Epochs, Everyone, FixedSize, Poisson
from cloister.store.signatures import Operator

pytestmark = pytest.mark.usefixtures("unsynced")


# --- the same run as on one machine -----------------------------------------------------------------------


GROUPED = TASKS.with_groups({"t0": "north", "t1": "south", "t2": "north", "t3": "south"})


@pytest.mark.parametrize(
    "algorithm",
    [
        SharedPrior(Regression(3), GroupMeans(Mean(), Groups.of(GROUPED.groups))),
        MeanRegularized(LeastSquares(3), rounds=4, steps=2, batch=2),
        LowRank(LeastSquares(3), rounds=3),
        SharedPrior(CountRegression(3), Mean()),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_board_and_models_are_those_of_one_machine(algorithm, tmp_path):
    plan = Plan(algorithm, n_tasks=M, delta=1e-2).calibrate(3.0)
    tasks = TASKS if algorithm.groups is None else GROUPED
    tasks = make_tasks(6) if algorithm.rows.target is Target.COUNT else tasks
    nodes, one = make_nodes(tmp_path, plan, tasks), here(plan, tasks)
    done = asked(Recorded(nodes), plan, tasks.roster)
    assert done.board.head == one.board.head
    assert done.private.models == {}
    assert_same_models(nodes, one)
    assert [len(node.home.ledger.history) for node in nodes.values()] == [1] * M
    assert "".join(map(log_of, nodes.values())) == ""


def test_a_network_of_nodes(tmp_path):
    torch = pytest.importorskip("torch")
    from cloister.algorithms import Personalized
    from cloister.learners import Descent, Module

    torch.manual_seed(0)
    module = Module(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)))
    algorithm = Personalized(module, Descent(0.2, batch=4, momentum=0.4), clip=0.3, rounds=3)
    plan, tasks = Plan(algorithm, n_tasks=M, delta=1e-2).calibrate(3.0), make_tasks(classes=2)
    nodes, one = make_nodes(tmp_path, plan, tasks, types=[module]), here(plan, tasks)
    done = asked(Recorded(nodes), plan, tasks.roster)
    for release, other in zip(done.board.releases, one.board.releases, strict=True):
        np.testing.assert_array_equal(release.value, other.value)
    assert_same_models(nodes, one)
    assert (done.board.doubts, one.board.doubts) == ((), (SHARED_DEVICE,))


@pytest.mark.parametrize(
    "plan", [replace(PLAN, sampling=FixedSize(2)), replace(PLAN, sampling=Epochs(2), mechanism=Toeplitz(0.8))]
)
def test_the_curator_draws_who_is_asked_where_the_plan_says_so(plan, tmp_path):
    nodes, one = make_nodes(tmp_path, plan), here(plan)
    link = Recorded(nodes)
    done = asked(link, plan)
    assert done.board.head == one.board.head
    assert_same_models(nodes, one)
    for t, coins in enumerate(one.private.coins):
        assert {name for round, name, _ in link.asked if round == t} == set(TASKS.ids[coins])


def test_a_hidden_coin_is_drawn_at_the_node_and_seen_in_no_size(tmp_path):
    plan = Plan(PLAN.algorithm, sampling=Poisson(0.5, hidden=True), n_tasks=M, delta=1e-2).calibrate(1.5)
    nodes = make_nodes(tmp_path, plan)
    link = Recorded(nodes)
    done = asked(link, plan)
    assert len(link.replies) == 5 * M
    assert {len(reply) for round, _, reply in link.replies if round < 4} == {len(link.replies[0][2])}
    spoke = np.array(
        [[Reply.from_bytes(r).row.any() for t, _, r in link.replies if t == k] for k in range(4)]
    )
    assert 0 < spoke.sum() < 4 * M
    for place, (name, node) in enumerate(nodes.items()):
        own = replay(
            plan,
            done.board,
            TASKS.only(name),
            coins=spoke[:, [place]],
            seeds=np.array([node.home.settings.seed], dtype=np.uint64),
        )
        np.testing.assert_array_equal(node.model(RUN)["coef"], own["coef"][0])


# --- what breaks off goes on ------------------------------------------------------------------------------


class Stopped(Exception):
    pass


def stop(posted):
    if posted.done == 2:
        raise Stopped


def test_a_curator_and_nodes_that_start_anew_go_on_to_the_same_head(nodes, alone, tmp_path):
    with pytest.raises(Stopped):
        asked(Recorded(nodes), journal=tmp_path / "journal", progress=stop)
    folder = tmp_path / "nodes"
    (folder / "t1" / "runs" / RUN / "states").unlink()  # computed again, from its rows and the board
    again = open_nodes(folder)
    done = asked(Recorded(again), journal=tmp_path / "journal")
    assert done.board.head == alone.board.head
    assert_same_models(again, alone)
    assert [len(node.home.ledger.history) for node in again.values()] == [1] * M


def test_a_node_that_was_away_listens_to_what_it_missed(nodes):
    """It counts as zero meanwhile, for the same noise and price, and has the model of its replay."""
    told = []
    done = asked(Recorded(nodes, away={(1, "t2")}), told=told)
    assert told == ["Round 1: node 't2' counts as zero."]
    assert done.private.rejected_messages == 1
    seed = np.array([nodes["t2"].home.settings.seed], dtype=np.uint64)
    own = replay(PLAN, done.board, TASKS.only("t2"), seeds=seed)
    np.testing.assert_array_equal(nodes["t2"].model(RUN)["coef"], own["coef"][0])
    assert str(done.guarantee) == str(here().guarantee)


@pytest.mark.parametrize("sampling", [Everyone(), FixedSize(2)])
def test_a_node_that_was_away_at_the_end_gets_the_board_later(sampling, tmp_path):
    plan = replace(PLAN, sampling=sampling)
    nodes, told, one = make_nodes(tmp_path, plan), [], here(plan)
    done = asked(Recorded(nodes, away={(4, "t2")}), plan, told=told)
    assert told == ["Node 't2' has not said that it has the finished board: deliver it again."]
    with pytest.raises(InputError, match="no model of run"):
        nodes["t2"].model(RUN)
    RemoteNodes(InProcess(nodes), OPERATOR).deliver(plan, done.board, TASKS.roster)
    assert_same_models(nodes, one)
    (tmp_path / "t2" / "runs" / RUN / "model.npz").unlink()  # killed while it was made
    Node(tmp_path / "t2").finish(RUN)
    assert nodes["t2"].model(RUN).keys() == {"coef"}


def test_a_node_that_was_put_back_from_a_copy_is_sent_what_it_lacks(nodes, alone):
    folder = nodes["t1"].home.folder
    copy = folder.with_name("copy")

    def change(t, name, reply):
        if (t, name) == (0, "t1"):
            shutil.copytree(folder, copy)
        elif (t, name) == (2, "t1"):
            shutil.rmtree(folder)
            shutil.copytree(copy, folder)
        return [(name, reply)]

    link = Recorded(nodes, change)
    assert asked(link).board.head == alone.board.head
    assert [Reply.from_bytes(reply).kind for t, name, reply in link.replies if name == "t1"].count(
        ReplyKind.BEHIND
    ) == 1
    assert_same_models(nodes, alone)


def test_a_node_is_made_once_and_says_what_is_missing(tmp_path):
    settings = NodeSettings("Elm ", OPERATOR.public.hex())
    home = NodeFolder.create(tmp_path / "elm", settings, **BUDGET)
    assert home.settings == settings
    assert home.settings.task == "Elm"
    with pytest.raises(InputError, match="is a node already"):
        NodeFolder.create(tmp_path / "elm", settings, **BUDGET)
    home.ledger.charge("plan", PLAN.cost)
    (home.folder / "node.toml").unlink()
    with pytest.raises(InputError, match="holds what a node has spent"):
        NodeFolder.create(tmp_path / "elm", settings, **BUDGET)
    with pytest.raises(InputError, match=r"has no node\.toml\. Type cloister node init"):
        _ = NodeFolder(tmp_path).settings
    with pytest.raises(InputError, match="There is no run 'exam' here"):
        Node(tmp_path / "elm").signed_head("exam")
    with pytest.raises(InputError, match="public key must be 64 hexadecimal digits"):
        NodeSettings("Elm", "no key")
    with pytest.raises(InputError, match="A run's name must be up to 64 letters"):
        Operator.new("a/b")
