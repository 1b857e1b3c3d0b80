"""The seam: streams, seeds and coins apart, a roster without rows, rows from elsewhere, saved states."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from cloister import Billboard, Ledger, Plan, Tasks, replay, run
from cloister.algorithms import MeanRegularized
from cloister.core.roster import NO_GROUP, Roster
from cloister.core.tasks import public_seeds
from cloister.engines import Local, MultiDevice
from cloister.engines.curator import Curator
from cloister.engines.workers import GridRows, Workers
from cloister.errors import AlgorithmError, BillboardError, InputError
from cloister.learners import LeastSquares
from cloister.mechanisms import Gaussian, Toeplitz
from cloister.privacy.chacha_proposals import on_processor
from cloister.privacy.randomness import SeededRandomness, SystemRandomness
from cloister.sampling import Epochs, FixedSize, Poisson
from cloister.store.journal import open_journal

M = 9
PLAN = Plan(
    MeanRegularized(LeastSquares(3), rounds=5, steps=2, batch=2), Gaussian(0.8), Poisson(0.6), n_tasks=M
)


def make_tasks(seed=0):
    rng = np.random.default_rng(seed)
    ids = np.repeat([f"t{i}" for i in range(M)], rng.integers(2, 6, M))
    X = rng.uniform(-0.5, 0.5, (len(ids), 3))
    return Tasks.from_arrays(X, X.sum(axis=1), ids)


TASKS = make_tasks()
SEEDS = public_seeds(TASKS.ids)


# --- streams ----------------------------------------------------------------------------------------------


def words_used(monkeypatch, act):
    """Return the streams that are asked for coins, by the key of each, while something is done."""
    from cloister.privacy import randomness

    used, call = [], randomness.Stream.call
    monkeypatch.setattr(randomness.Stream, "call", lambda self: used.append(self.key) or call(self))
    act()
    monkeypatch.undo()
    return used


@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, mechanism=Toeplitz(0.8), sampling=Epochs(1))])
def test_noise_coins_and_seeds_come_from_streams_of_their_own(plan, monkeypatch):
    """No two calls of a run share a stream: neither rounds, nor noise and coins, nor noise and seeds."""
    source = SeededRandomness(3)
    noise = {source.stream("noise", t).key for t in range(5)}
    local, coins = source.stream("local").key, source.stream("coins").key
    assert len(noise | {local, coins}) == 7
    used = words_used(monkeypatch, lambda: run(plan, TASKS, random_state=3))
    assert set(used) == noise | {local, coins}
    assert used.count(local) == 1
    assert words_used(monkeypatch, lambda: source.task_seeds(["a"])) == [local]


def test_every_task_has_a_seed_of_its_own():
    """A function of the run's key and the task's name, of nothing else; and all of the key counts."""
    source = SystemRandomness()
    seeds = source.task_seeds(TASKS.ids)
    assert len(set(seeds.tolist())) == M
    np.testing.assert_array_equal(source.task_seeds(TASKS.ids[::-1]), seeds[::-1])
    key = bytearray(source.key)
    for at in (0, 15, 31):
        key[at] ^= 1
        assert not set(SystemRandomness(bytes(key)).task_seeds(TASKS.ids).tolist()) & set(seeds.tolist())
    one, two = (run(PLAN, TASKS, random_state=s).private for s in (1, 2))
    assert not set(one.seeds.tolist()) & set(two.seeds.tolist())


def test_a_task_needs_its_own_seed_and_no_others():
    done = run(PLAN, TASKS, random_state=1)
    private = done.private
    at = [4]
    own = replay(PLAN, done.board, TASKS.select(at), coins=private.coins[:, at], seeds=private.seeds[at])
    np.testing.assert_allclose(own["coef"][0], private.models["coef"][4], rtol=1e-10)
    wrong = replay(PLAN, done.board, TASKS.select(at), coins=private.coins[:, at], seeds=private.seeds[[5]])
    assert not np.allclose(wrong["coef"][0], private.models["coef"][4], rtol=1e-6)
    with pytest.raises(InputError, match="one seed a task, for 9 tasks"):
        replay(PLAN, done.board, TASKS, coins=private.coins, seeds=private.seeds[:3])


# --- tasks that are elsewhere -----------------------------------------------------------------------------


@dataclass
class Node:
    """One institution: it has its rows, seed, coins, state and model, and the records it was sent."""

    plan: Plan
    rows: Tasks
    seed: np.uint64
    board: Billboard | None = None
    model: dict | None = None

    def receive(self, board):
        seen = 0 if self.board is None else len(self.board.records)
        for number in range(seen, len(board.records)):
            record = board.record_bytes(number)
            self.board = (
                Billboard.from_bytes(record) if self.board is None else self.board.append_bytes(record)
            )
        return self.board.before(board.rounds)

    def takes_part(self, round):
        return self.plan.sampling.rate > np.random.default_rng([int(self.seed), round]).uniform()

    def start(self, board):
        self.block = next(self.rows.blocks(seeds=np.array([self.seed])))
        self.state = self.plan.algorithm.init(self.block, self.receive(board))

    def round(self, board, takes_part):
        here = self.receive(board)
        if not takes_part:
            return None
        message, self.state = self.plan.algorithm.send(self.state, self.block, here)
        return self.plan.algorithm.channel(here).rows(message)[0]

    def finish(self, board):
        self.model = self.plan.algorithm.finish(self.state, self.block, self.receive(board))


@dataclass
class Apart:
    """An engine whose tasks are elsewhere: all that comes back are rows on the grid."""

    nodes: dict
    seen: list = field(default_factory=list)
    spoil: object = staticmethod(lambda rows: rows)

    remote = True

    def noise_sampler(self):
        return on_processor

    def doubts_of(self, plan):
        return ()

    @contextmanager
    def workers(self, plan, tasks, seeds):
        assert isinstance(tasks, Roster)
        assert not len(seeds)
        yield Remote([self.nodes[name] for name in tasks], self)


@dataclass
class Remote:
    nodes: list
    engine: Apart

    def start(self, board):
        for node in self.nodes:
            node.start(board)

    def collect(self, board, channel, coins):
        self.engine.seen.append(("collect", board.rounds, len(coins)))
        said = self.rows(board, coins)
        at = [number for number, row in enumerate(said) if row is not None]
        values = np.array([said[number] for number in at], dtype=np.int64).reshape(len(at), -1)
        return self.engine.spoil(GridRows(values, at))

    def listen(self, board, coins):
        self.engine.seen.append(("listen", board.rounds, len(coins)))
        self.rows(board, coins)

    def rows(self, board, coins):
        take = coins if len(coins) else [node.takes_part(board.rounds) for node in self.nodes]
        return [node.round(board, here) for node, here in zip(self.nodes, take, strict=True)]

    def finish(self, board, folder=None):
        for node in self.nodes:
            node.finish(board)
        return {}

    def rejected(self):
        return 0


def apart(plan, tasks=TASKS, seeds=None, **more):
    seeds = SystemRandomness().task_seeds(tasks.ids) if seeds is None else seeds
    nodes = {
        name: Node(plan, tasks.only(name), seed) for name, seed in zip(tasks.ids.tolist(), seeds, strict=True)
    }
    return Apart(nodes, **more)


@pytest.mark.parametrize("mechanism", [Gaussian(0.8), Toeplitz(0.8), Gaussian(0.8, exact=False)])
def test_a_roster_is_enough_for_tasks_that_are_elsewhere(mechanism):
    """The same board and models as on one machine, up to rounding; and here is neither row nor model."""
    plan = replace(
        PLAN, mechanism=mechanism, sampling=FixedSize(5) if mechanism == Gaussian(0.8) else Epochs(1)
    )
    here = run(plan, TASKS, random_state=1)
    engine = apart(plan, seeds=here.private.seeds)
    done = run(plan, TASKS.roster, random_state=1, engine=engine, ledger=Ledger(20.0, plan.delta))
    for one, two in zip(done.board.releases, here.board.releases, strict=True):
        np.testing.assert_allclose(one.value, two.value, atol=1e-4)
    for name, node in engine.nodes.items():
        np.testing.assert_allclose(node.model["coef"][0], here.model(name)["coef"], atol=1e-4)
        assert node.board.head == done.board.head
    assert done.private.models == {}
    assert len(done.private.seeds) == 0
    with pytest.raises(InputError, match="holds no models: they stayed with the tasks"):
        done.model("t3")


def test_tasks_that_are_elsewhere_draw_and_keep_their_own_coins(tmp_path):
    class Stopped(Exception):
        pass

    def stop(posted):
        if posted.done == 3:
            raise Stopped

    engine, again = (apart(PLAN, seeds=SeededRandomness(5).task_seeds(TASKS.ids)) for _ in range(2))
    with pytest.raises(Stopped):
        run(PLAN, TASKS.roster, random_state=1, engine=engine, journal=tmp_path, progress=stop)
    done = run(PLAN, TASKS.roster, random_state=1, engine=again, journal=tmp_path)
    assert again.seen == [("listen", t, 0) for t in range(3)] + [("collect", t, 0) for t in (3, 4)]
    assert done.private.coins.shape == (5, 0)
    whole = run(
        PLAN,
        TASKS.roster,
        random_state=1,
        engine=apart(PLAN, seeds=SeededRandomness(5).task_seeds(TASKS.ids)),
    )
    assert done.board.head == whole.board.head


def too_long(rows):
    rows.values[0, 0] = 2**19
    return rows


def twice(rows):
    return GridRows(np.concatenate([rows.values, rows.values[:1]]), [*rows.tasks, rows.tasks[0]])


def unknown(rows):
    return GridRows(rows.values, [*rows.tasks[1:], M])


def unsampled(rows):
    free = sorted(set(range(M)) - set(rows.tasks))
    return GridRows(rows.values, [free[0], *rows.tasks[1:]])


def real(rows):
    return GridRows(rows.values / 2, rows.tasks)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (too_long, "longer than its channel allows"),
        (twice, "one message a round"),
        (unknown, "one task on the roster that takes part"),
        (unsampled, "one task on the roster that takes part"),
        (real, "64-bit integers"),
    ],
)
def test_the_curator_checks_every_row(spoil, words):
    plan = replace(PLAN, sampling=FixedSize(5))
    with pytest.raises(InputError, match=words):
        run(plan, TASKS.roster, engine=apart(plan, spoil=spoil))


@dataclass(frozen=True)
class Noting(MeanRegularized):
    """Notes when its channel is looked at, and when tasks are."""

    seen: list = field(default_factory=list, compare=False)
    undeclared: int = 99

    def channel(self, board):
        self.seen.append(("channel", board.rounds))
        declared = super().channel(board)
        return replace(declared, clip=2 * declared.clip) if board.rounds >= self.undeclared else declared

    def send(self, states, block, board):
        self.seen.append(("send", board.rounds))
        return super().send(states, block, board)


@pytest.mark.parametrize("engine", [Local(threads=1), MultiDevice((Local(threads=1), Local(threads=1)))])
def test_a_channel_is_computed_once_a_round_before_anybody_works(engine):
    algorithm = Noting(LeastSquares(3), rounds=3)
    plan = Plan(algorithm, Gaussian(0.8), n_tasks=M)
    with engine.workers(plan, TASKS, SEEDS) as workers, open_journal(None, plan, TASKS, 1, False) as journal:
        workers.start(journal.posted)
        algorithm.seen.clear()
        Curator(plan, journal, np.full(M, NO_GROUP)).rounds(workers, None)
    count = 2 if isinstance(engine, MultiDevice) else 1
    assert algorithm.seen == [each for t in range(3) for each in [("channel", t), *[("send", t)] * count]]


def test_no_task_works_on_a_channel_that_nobody_paid_for():
    algorithm = Noting(LeastSquares(3), rounds=3, undeclared=1)
    plan = Plan(algorithm, Gaussian(0.8), n_tasks=M)
    with Local().workers(plan, TASKS, SEEDS) as workers, open_journal(None, plan, TASKS, 1, False) as journal:
        workers.start(journal.posted)
        with pytest.raises(AlgorithmError, match="Round 1 uses a channel that its schedule did not declare"):
            Curator(plan, journal, np.full(M, NO_GROUP)).rounds(workers, None)
    assert ("send", 0) in algorithm.seen
    assert ("send", 1) not in algorithm.seen
    assert journal.posted.rounds == 1


@pytest.mark.parametrize("engine", [Local(), MultiDevice((Local(), Local()))])
def test_engines_on_this_machine_need_rows(engine):
    ledger = Ledger(20.0, PLAN.delta)
    with pytest.raises(InputError, match="computes on the rows of tasks, and a roster has none"):
        run(PLAN, TASKS.roster, engine=engine, ledger=ledger)
    assert not ledger.history


# --- saved states -----------------------------------------------------------------------------------------


ENGINES = [Local(), Local(threads=1), MultiDevice((Local(), Local()))]


@pytest.mark.parametrize("second", ENGINES, ids=repr)
@pytest.mark.parametrize("first", ENGINES, ids=repr)
def test_workers_go_on_from_saved_states(first, second):
    """Saved by one engine after two rounds and restored on another: the same sums, without a round heard."""
    done = run(PLAN, TASKS, random_state=1)
    private = done.private

    def sums(workers, rounds):
        boards = [done.board.before(t) for t in rounds]
        return [
            np.asarray(workers.collect(board, PLAN.algorithm.channel(board), private.coins[board.rounds]))
            for board in boards
        ]

    with first.workers(PLAN, TASKS, private.seeds) as workers:
        workers.start(done.board.before(0))
        sums(workers, range(2))
        saved = workers.save_state()
        expected = sums(workers, range(2, 5))
    assert "private" in repr(saved)
    with second.workers(PLAN, TASKS, private.seeds) as workers:
        workers.restore_state(replace(saved, rejected=7))
        found = sums(workers, range(2, 5))
        assert (saved.rejected, workers.rejected()) == (0, 7)
    np.testing.assert_allclose(found, expected, atol=2)


def test_a_board_of_another_plan_is_refused():
    """A node that is sent records checks them against the plan that it agreed to."""
    board = run(PLAN, TASKS, random_state=1).board
    with pytest.raises(BillboardError, match="another plan"):
        replace(PLAN, mechanism=Gaussian(0.5)).check(Billboard.from_bytes(board.record_bytes(0)))


def test_the_protocol_is_what_engines_give():
    with Local().workers(PLAN, TASKS, SeededRandomness(0).task_seeds(TASKS.ids)) as workers:
        assert {name for name in vars(Workers) if not name.startswith("_")} <= set(dir(workers))
