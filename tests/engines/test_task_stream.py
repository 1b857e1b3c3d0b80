"""Streams of tasks: the run of a roster that nobody knew, joined one by one, closed and opened again."""

from __future__ import annotations

import unicodedata
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import cloister as cl
from cloister.algorithms import FTMRL, ChooseAtHome, MeanRegularized, MetaSGD
from cloister.core.roster import Groups, GrowingRoster
from cloister.engines import TaskStream
from cloister.engines.curator import Curator
from cloister.errors import AlgorithmError, BillboardError, BudgetError, InputError, PlanError, StorageError
from cloister.learners import Convex, ExactSolver, LeastSquares, Logistic
from cloister.mechanisms import BLT, Gaussian, NoNoise, Toeplitz, Tree
from cloister.sampling import InOrder, OnePass

DIM = 3
LEARNER = Convex(LeastSquares(DIM))


def ftmrl(rounds, **more):
    return FTMRL(LEARNER, ExactSolver(), rounds=rounds, lam_meta=5.0, **more)


def plan_of(tasks, rounds, mechanism=Gaussian(), algorithm=ftmrl, **more):  # noqa: B008
    plan = cl.Plan(algorithm(rounds), mechanism, InOrder(), n_tasks=tasks, **more)
    return plan if isinstance(mechanism, NoNoise) else plan.calibrate(2.0)


def some_tasks(count, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, 6, count)
    X = rng.uniform(-0.5, 0.5, (int(rows.sum()), DIM))
    return cl.Tasks.from_arrays(X, X @ [1.0, -2.0, 0.5], np.repeat([f"t{i:03}" for i in range(count)], rows))


def rows_of(tasks):
    """Return the name and the rows of each task."""
    spans = zip(tasks.offsets[:-1], tasks.offsets[1:], strict=True)
    return [
        (name, tasks.X[a:b], tasks.y[a:b]) for name, (a, b) in zip(tasks.ids.tolist(), spans, strict=True)
    ]


# --- the same as a run -----------------------------------------------------------------------------------

ALGORITHMS = {
    "ftmrl": ftmrl,
    "meta": lambda rounds: MetaSGD(LEARNER, ExactSolver(), rounds=rounds),
    "descent": lambda rounds: MetaSGD(LEARNER, cl.learners.Descent(lr=0.1, steps=3), rounds=rounds),
    "choice": lambda rounds: ChooseAtHome(ftmrl(rounds), cl.learners.Regression(DIM, intercept=False)),
    "with a state": lambda rounds: MeanRegularized(LeastSquares(DIM), rounds=rounds, batch=2),
}
MECHANISMS = [Gaussian(), Toeplitz(), Toeplitz(bands=3), Tree(), BLT(), NoNoise()]


@pytest.mark.parametrize("saved", [False, True], ids=["memory", "journal"])
@pytest.mark.parametrize(
    ("name", "mechanism", "rounds"),
    [
        *(("ftmrl", mechanism, 12) for mechanism in MECHANISMS),
        *((name, Toeplitz(), 12) for name in ALGORITHMS if name != "ftmrl"),
        *(("ftmrl", mechanism, 4) for mechanism in MECHANISMS),
        ("meta", Gaussian(), 3),
        ("with a state", Gaussian(exact=False), 5),  # the last round takes two of three
    ],
    ids=str,
)
def test_a_stream_is_a_run_over_the_same_tasks(tmp_path, name, mechanism, rounds, saved):
    """Board, models at the end and (what a replay says) at arrival; opened again before every join."""
    count = 14 if rounds == 5 else 12
    plan, tasks = plan_of(count, rounds, mechanism, ALGORITHMS[name]), some_tasks(count)
    whole = cl.run(plan, tasks, random_state=3)
    stream, arrived = TaskStream(plan, random_state=3, journal=tmp_path if saved else None), []
    for i, (task, X, y) in enumerate(rows_of(tasks)):
        if saved and i:
            stream.close()
            stream = TaskStream(plan, random_state=3, journal=tmp_path)
        assert (len(stream), stream.board.rounds) == (i, i // -(-count // rounds))
        arrived.append(stream.join(task, X, y))
    exact = mechanism.exact or isinstance(mechanism, NoNoise)
    if exact:
        assert stream.finish().head == whole.board.head
    np.testing.assert_allclose(stream.finish()["mean"], whole.board["mean"], rtol=1e-12)
    for i, (task, X, y) in enumerate(rows_of(tasks)):
        for key, array in stream.model(task, X, y).items():
            np.testing.assert_allclose(array, whole.model(task)[key], rtol=1e-9, atol=1e-12)
        turn, one = i // -(-count // rounds), tasks.select([i])
        then = whole.board.before(turn)
        coins = np.arange(rounds)[:, None] == turn
        if not plan.algorithm.init(next(one.blocks()), then):  # without a state, what it then heard is all
            again = cl.replay(plan, then, one, coins=coins, seeds=whole.private.seeds[[i]])
            np.testing.assert_allclose(arrived[i]["coef"], again["coef"][0], rtol=1e-9, atol=1e-12)
    if saved:
        assert {path.name for path in tmp_path.iterdir()} == {"board", "plan.toml", "roster"}
        assert cl.Billboard.load(tmp_path / "board").head == stream.board.head


def test_a_network_joins_a_stream():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    network = cl.learners.Module(torch.nn.Linear(DIM, 2))
    algorithm = MetaSGD(network, cl.learners.Descent(lr=0.1, steps=2), rounds=4, lam=0.1)
    plan = cl.Plan(algorithm, Gaussian(), InOrder(), n_tasks=8).calibrate(5.0)
    tasks = some_tasks(8)
    tasks = replace(tasks, y=(tasks.y > 0).astype(np.int64))
    whole, stream = cl.run(plan, tasks, random_state=1), TaskStream(plan, random_state=1)
    for task, X, y in rows_of(tasks):
        stream.join(task, X, y)
    np.testing.assert_allclose(stream.board["mean"], whole.board["mean"], rtol=1e-4, atol=1e-6)
    assert [doubt.reason for doubt in stream.guarantee.doubts] == [d.reason for d in whole.guarantee.doubts]


# --- who may join ----------------------------------------------------------------------------------------


def test_a_name_joins_once_also_when_the_stream_is_opened_again(tmp_path):
    plan, X, y = plan_of(9, 3), np.ones((2, DIM)) / 9, np.zeros(2)
    composed, decomposed = (unicodedata.normalize(form, "Gånge") for form in ("NFC", "NFD"))
    stream = TaskStream(plan, journal=tmp_path)
    stream.join(decomposed, X, y)
    stream.join("Elm", X, y)
    for _ in range(2):
        for name in (composed, decomposed, f" {composed} ", "Elm"):
            with pytest.raises(InputError, match=r"has joined already, as number [12]. Each speaks once"):
                stream.join(name, X, y)
        with pytest.raises(InputError, match="which look the same"):
            stream.join("El\u200bm", X, y)
        with pytest.raises(InputError, match="all text or all whole numbers"):
            stream.join(7, X, y)
        assert (len(stream), stream.board.rounds, stream.roster.names) == (2, 0, (composed, "Elm"))
        stream.close()
        stream = TaskStream(plan, journal=tmp_path)
    stream.join("Oak", X, y)
    assert (len(stream), stream.board.rounds) == (3, 1)
    stream.close()


def test_a_growing_roster_refuses_what_a_roster_refuses():
    growing = GrowingRoster()
    growing.add(3.0)
    with pytest.raises(InputError, match="as number 1"):
        growing.add(3)
    assert (growing.names, 3 in growing, 4 in growing) == ((3,), True, False)
    with pytest.raises(InputError, match="There is no task 4 here"):
        growing.position(4)
    for bad in (None, True, float("nan"), ""):
        with pytest.raises(InputError):
            growing.add(bad)
    assert len(growing) == 1
    words = GrowingRoster()
    words.add("Oak")
    words.add("El\u200bm")
    with pytest.raises(InputError, match="which look the same"):
        words.add("Elm")


def test_a_full_a_finished_and_a_closed_stream_say_what_to_do():
    plan, X, y = plan_of(2, 2), np.ones((1, DIM)) / 9, np.zeros(1)
    stream = TaskStream(plan)
    for name in ("a", "b"):
        stream.join(name, X, y)
    with pytest.raises(InputError, match=r"is full, with 2 of 2 tasks. .*adapt.*plan another stream"):
        stream.join("c", X, y)
    fresh = cl.adapt(plan, stream.board, cl.Tasks.from_list([X], [y], ["c"]))
    assert fresh["coef"].shape == (1, DIM)
    early = TaskStream(plan_of(2, 2))
    early.join("a", X, y)
    board = early.finish()
    assert (board.rounds, board.complete, early.finish().head) == (1, False, board.head)
    with pytest.raises(InputError, match="has ended, with 1 of 2 tasks"):
        early.join("b", X, y)
    assert early.model("a", X, y)["coef"].shape == (DIM,)
    closed = TaskStream(plan)
    closed.close()
    for call in (lambda: closed.join("a", X, y), closed.finish):
        with pytest.raises(InputError, match=r"is closed. Open it again"):
            call()


def test_a_round_that_is_not_full_at_the_end_is_posted_as_it_is():
    """With the denominator and the noise of a full one; and the board of a run in which zeros are said."""
    plan, tasks = plan_of(6, 2), some_tasks(6)
    stream = TaskStream(plan, random_state=0)
    for task, X, y in rows_of(tasks)[:4]:
        stream.join(task, X, y)
    assert stream.board.rounds == 1
    board = stream.finish()
    silent = tasks.blanked(np.arange(6) >= 4)
    assert board.head == cl.run(plan, silent, random_state=0).board.head
    plan.check(board)
    assert [(r.denominator, r.noise) for r in board.releases] == [
        (3.0, plan.noise(0, plan.schedule.channel))
    ] * 2


def test_plans_that_cannot_take_tasks_as_they_come_are_refused():
    prior = cl.algorithms.SharedPrior(cl.learners.Regression(DIM))
    apart = cl.algorithms.SharedPrior(cl.learners.Regression(DIM), cl.algorithms.Mean()).with_groups(
        Groups(("north", "south"), (5, 4))
    )
    for plan, says in [
        (
            replace(plan_of(6, 2), sampling=OnePass()),
            r"in the order in which they come. Got sampling=OnePass\(\)",
        ),
        (cl.Plan(prior, Gaussian(0.5), InOrder(), n_tasks=9), "SharedPrior has . kinds of rounds. Use FTMRL"),
        (
            cl.Plan(cl.algorithms.Independent(cl.learners.Regression(2)), NoNoise(), InOrder(), n_tasks=9),
            "0 kinds",
        ),
        (cl.Plan(apart, Gaussian(0.5), InOrder(), n_tasks=9), "knows no groups"),
        (plan_of(9, 6), "9 tasks, 2 a round, do not fill 6 rounds. Plan for 5 rounds, or for 12 tasks"),
        (cl.Plan(ftmrl(3), Gaussian(), InOrder(), n_tasks=3), "no noise level yet"),
    ]:
        with pytest.raises(PlanError, match=says):
            TaskStream(plan)


# --- rows and charges ------------------------------------------------------------------------------------


def test_wrong_rows_take_no_place_and_are_not_charged(tmp_path):
    learner = Convex(Logistic(DIM))
    algorithm = FTMRL(learner, cl.learners.Descent(lr=0.1), rounds=3)
    plan = cl.Plan(algorithm, Gaussian(), InOrder(), n_tasks=3).calibrate(1.0)
    ledger, X = cl.Ledger(5.0, 1e-3), np.ones((2, DIM)) / 9
    stream = TaskStream(plan, ledger=ledger, journal=tmp_path)
    before = stream.board.head
    for bad, y, says in [
        (X[:, :2], [0, 1], "Rows must have 3 columns"),
        (X, [0.5, 1], "class indexes from 0 to 1"),
        (X * np.nan, [0, 1], "missing or infinite value"),
        (X, [0], "2 rows of X but 1 of y"),
        (X[:0], [], "has no rows"),
    ]:
        with pytest.raises(InputError, match=says):
            stream.join("Elm", bad, y)
    assert (len(stream), stream.board.head, ledger.history) == (0, before, ())
    assert not (tmp_path / "waiting").exists()
    stream.join("Elm", X, [0, 1])
    assert (len(stream), len(ledger.history)) == (1, 1)
    stream.close()


class Fails(MeanRegularized):
    """Has no model before the last round."""

    def finish(self, states, block, board):
        if board.rounds < board.capacity:
            raise ValueError("the board is not complete.")
        return super().finish(states, block, board)


def test_an_algorithm_without_a_model_at_arrival_is_refused_before_the_charge():
    plan = cl.Plan(Fails(LeastSquares(DIM), rounds=3), Gaussian(0.5), InOrder(), n_tasks=3)
    ledger = cl.Ledger(5.0, 1e-3)
    with pytest.raises(AlgorithmError, match=r"the board is not complete. Nothing was charged"):
        TaskStream(plan, ledger=ledger).join("Elm", np.ones((2, DIM)), np.zeros(2))
    assert ledger.history == ()


def test_a_stream_is_charged_once_for_all_its_tasks(tmp_path):
    """At the price of one round, which is that of `OnePass`; a stream that goes on is not charged again."""
    plan, tasks = plan_of(6, 6), some_tasks(6)
    ledger = cl.Ledger.create(tmp_path / "ledger", "tasks", epsilon=3.0, delta=plan.delta, n_tasks=6)
    for task, X, y in rows_of(tasks):
        with TaskStream(plan, ledger=ledger, journal=tmp_path / "stream") as stream:
            stream.join(task, X, y)
    (charge,) = ledger.history
    assert charge.plan == plan.fingerprint
    assert charge.mu == pytest.approx(plan.mechanism.mu / 6**0.5)  # of one round
    assert ledger.spent == pytest.approx(plan.guarantee.epsilon)
    assert plan.guarantee.epsilon == replace(plan, sampling=OnePass()).guarantee.epsilon
    assert stream.guarantee.n_tasks == 6
    assert "who came, and when, is seen by all and must not depend on the rows" in str(stream.guarantee)


def test_a_stream_that_cannot_be_paid_leaves_nothing_behind(tmp_path):
    plan, X, y = plan_of(3, 3), np.ones((1, DIM)), np.zeros(1)
    poor = cl.Ledger(0.1, 1e-3)
    stream = TaskStream(plan, ledger=poor, journal=tmp_path / "stream")
    with pytest.raises(BudgetError, match="Nothing has left any task"):
        stream.join("Elm", X, y)
    assert (poor.history, (tmp_path / "stream").exists()) == ((), False)
    with TaskStream(plan, ledger=cl.Ledger(9.0, 1e-3), journal=tmp_path / "stream") as stream:
        stream.join("Elm", X, y)
    with pytest.raises(InputError, match=r"was begun with a ledger. Name it again"):
        TaskStream(plan, journal=tmp_path / "stream")


# --- what is on disk -------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    """A stream of four tasks a round, with six tasks and one release."""
    plan, folder = plan_of(12, 3, Toeplitz()), tmp_path / "stream"
    with TaskStream(plan, journal=folder) as stream:
        for task, X, y in rows_of(some_tasks(6)):
            stream.join(task, X, y)
    return plan, folder


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: (folder / "roster").write_text(
            (folder / "roster").read_text().replace("t002", "u002")
        ),
        lambda folder: (folder / "roster").write_text('"t000"\n'),
        lambda folder: (folder / "roster").unlink(),
        lambda folder: (folder / "waiting").unlink(),
        lambda folder: (folder / "waiting").write_bytes((folder / "waiting").read_bytes()[::-1]),
    ],
    ids=["another name", "fewer names", "no roster", "no sum", "another sum"],
)
def test_what_was_edited_or_lost_is_refused(saved, harm):
    plan, folder = saved
    harm(folder)
    with pytest.raises(BillboardError, match=r"was edited, or .* is gone: this stream cannot go on"):
        TaskStream(plan, journal=folder)


def test_a_board_without_its_last_releases_is_refused(saved):
    plan, folder = saved
    with TaskStream(plan, journal=folder) as stream:
        for task, X, y in rows_of(some_tasks(9))[6:]:
            stream.join(task, X, y)
        begun = stream.board.before(0)
    (folder / "board").write_bytes(begun._bytes().removesuffix(b"end of billboard\n"))
    with pytest.raises(BillboardError, match="0 releases of 9 tasks"):
        TaskStream(plan, journal=folder)


def test_a_full_round_that_was_no_longer_posted_is_posted_on_opening(saved, monkeypatch):
    """The process ends when the last message is kept and not yet released: nobody need come again."""
    plan, folder = saved
    rows = rows_of(some_tasks(8))
    stream = TaskStream(plan, journal=folder)
    stream.join(*rows[6])
    monkeypatch.setattr(Curator, "post", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        stream.join(*rows[7])
    with pytest.raises(InputError, match="is closed"):
        stream.join("t009", *rows[0][1:])
    monkeypatch.undo()
    with TaskStream(plan, journal=folder) as stream:
        assert (len(stream), stream.board.rounds) == (8, 2)
        with pytest.raises(InputError, match="'t007' has joined already, as number 8"):
            stream.join(*rows[7])


def test_a_name_without_its_sum_has_not_joined(saved):
    """As a crash leaves it between the two writes; or in the middle of the first."""
    plan, folder = saved
    names = (folder / "roster").read_bytes()
    for torn in (b'"t006"\n', b'"t0', b"\0\0\0\0"):
        (folder / "roster").write_bytes(names + torn)
        with TaskStream(plan, journal=folder) as stream:
            assert len(stream) == 6
        assert (folder / "roster").read_bytes() == names


def test_a_folder_is_of_one_kind(saved, tmp_path):
    """A stream is not taken for a run, another process is kept out, and an ended stream stays ended."""
    plan, folder = saved
    with pytest.raises(InputError, match="has changed since the run"):
        cl.run(plan, some_tasks(12), journal=folder)
    with TaskStream(plan, journal=folder) as stream:
        with pytest.raises(StorageError, match="Another process is writing"):
            TaskStream(plan, journal=folder)
        stream.finish()
    with pytest.raises(InputError, match="is complete and its secret is deleted"):
        TaskStream(plan, journal=folder)
    assert cl.Billboard.load(folder / "board").rounds == 2


def test_an_end_that_was_interrupted_is_gone_through_on_opening(saved):
    """After the last round was posted short, after the last line, and after the sum was removed."""
    plan, folder = saved
    secret = (folder / "secret").read_bytes()
    stream = TaskStream(plan, journal=folder)
    board = stream.finish()
    (folder / "secret").write_bytes(secret)
    with pytest.raises(InputError, match="has ended: its board can be read, not added to"):
        TaskStream(plan, journal=folder)
    assert {path.name for path in folder.iterdir()} == {"board", "plan.toml", "roster"}
    assert cl.Billboard.load(folder / "board").head == board.head


def test_a_short_last_round_that_was_posted_is_the_last(saved):
    plan, folder = saved
    stream = TaskStream(plan, journal=folder)
    stream._post()
    stream.close()
    with TaskStream(plan, journal=folder) as stream:
        with pytest.raises(InputError, match="has ended, with 6 of 12 tasks"):
            stream.join("new", np.ones((1, DIM)), np.zeros(1))
        assert stream.finish().rounds == 2


def test_the_last_round_is_not_made_again_with_more_tasks(saved, monkeypatch):
    """Killed while a short last round was posted: it is posted as it was, and nobody may join."""
    plan, folder = saved
    stream = TaskStream(plan, journal=folder)

    def killed():
        raise KeyboardInterrupt

    monkeypatch.setattr(stream, "_post", killed)
    with pytest.raises(KeyboardInterrupt):
        stream.finish()
    with TaskStream(plan, journal=folder) as again:
        with pytest.raises(InputError, match="has ended"):
            again.join("late", np.ones((1, DIM)), np.zeros(1))
        assert again.finish().rounds == 2


def test_tasks_may_come_from_many_threads():
    plan, tasks = plan_of(24, 8, Tree()), some_tasks(24)
    stream = TaskStream(plan, random_state=0)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda one: stream.join(*one), rows_of(tasks)))
    assert (sorted(stream.roster), stream.board.complete) == (tasks.ids.tolist(), True)
    order = [tasks.ids.tolist().index(name) for name in stream.roster]
    assert cl.run(plan, tasks.select(order), random_state=0).board.head == stream.board.head
