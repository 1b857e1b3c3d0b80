"""Records as senders: each clipped, on the grid and lifted by itself, summed at home in whole numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from scipy.stats import kstest

from cloister import Ledger, Plan, Tasks, Unit, check_algorithm, replay, run
from cloister.algorithms import SharedPrior
from cloister.app.summary import short_guarantee
from cloister.audit.auditor import SingleRelease
from cloister.channel import Channel, Outer, Plain
from cloister.core.channel import GRID, Round
from cloister.core.spec import Sender
from cloister.engines import Local, MultiDevice
from cloister.engines.workers import check_whole
from cloister.errors import AlgorithmError, InputError, PlanError, PrivateDataError
from cloister.learners import Regression
from cloister.mechanisms import Gaussian, NoNoise, Toeplitz
from cloister.privacy.guarantee import Guarantee
from cloister.privacy.trust import Trust
from cloister.report.run_page import PublicPart, public_page
from cloister.sampling import Poisson

RNG = np.random.default_rng(0)
SIZES = [1, 3, 40, 2]
TASKS = Tasks.from_list(
    [RNG.normal(size=(n, 2)) for n in SIZES], [RNG.normal(size=n) for n in SIZES], ["a", "b", "c", "d"]
)


@dataclass(frozen=True)
class JointGram(SingleRelease):
    """Every record says its row and target; the board has the sum of their outer products."""

    only: Channel = field(default_factory=lambda: Channel(3, clip=1.5, lift=Outer()))
    rounds: int = 2

    @property
    def senders(self):
        return frozenset({Sender.RECORD})

    def schedule(self, n_tasks, budget):
        return (Round(1 / self.rounds, (self.only,)),) * self.rounds

    def start(self):
        return {"gram": np.zeros(6)}

    def send(self, states, block, board):
        return np.concatenate([block.X[:, 0], block.y], axis=1), states

    def update(self, release, board):
        return {"gram": release.value / release.denominator}

    def finish(self, states, block, board):
        return {"own": (block.weight > 0).sum(axis=1)}


def gram_of(tasks: Tasks, channel: Channel) -> np.ndarray:
    """Return the sum over records of the clipped outer products, written without the library's code."""
    said = np.column_stack([tasks.X, tasks.y])
    said = said / np.maximum(1, np.linalg.norm(said, axis=1, keepdims=True) / channel.clip) / channel.clip
    i, j = np.triu_indices(3)
    return (said.T @ said)[i, j] * np.where(i == j, 1, np.sqrt(2))


def plan_of(algorithm=None, rows=50, **options) -> Plan:
    return Plan(algorithm or JointGram(), n_tasks=4, unit=Unit.record(rows), **options)


@pytest.mark.parametrize("engine", [Local(), Local(block=1), Local(threads=1, block=2)], ids=str)
def test_a_sum_is_that_of_all_clipped_records_whoever_has_them(engine):
    done = run(plan_of(mechanism=NoNoise()), TASKS, engine=engine)
    found = done.board.releases[0]
    assert np.allclose(found.value, gram_of(TASKS, JointGram().only), atol=1e-4)
    assert found.denominator == 50  # the public number, and not the 46 records that there are
    assert done.private.models["own"].tolist() == SIZES


def test_what_a_record_moves_is_attained_and_never_passed():
    """Replaced and silenced, a record moves a sum by the channel's sensitivity and by no more: exactly."""
    channel = JointGram(rounds=1).only
    plan = plan_of(JointGram(rounds=1), mechanism=NoNoise())

    def sum_with(row):
        X, y = TASKS.X.copy(), TASKS.y.copy()
        X[5], y[5] = row[:2], row[2]
        return run(plan, replace(TASKS, X=X, y=y)).board.releases[0].value

    one, other = (99.0, 0.0, 0.0), (0.0, 0.0, -7.0)
    moved = np.linalg.norm(sum_with(one) - sum_with(other))
    assert moved == pytest.approx(channel.sensitivity("replace"), abs=1e-12)
    silenced = np.linalg.norm(sum_with(one) - sum_with((0.0, 0.0, 0.0)))
    assert silenced == pytest.approx(channel.sensitivity("zero_out"), abs=1e-12)
    for _ in range(50):
        pair = 3 * RNG.standard_normal((2, 3))
        assert np.linalg.norm(sum_with(pair[0]) - sum_with(pair[1])) <= channel.sensitivity("replace")


def test_the_price_is_that_of_a_record_and_a_person_is_a_group():
    record = plan_of(mechanism=Gaussian(0.2), delta=1e-6).guarantee
    assert (record.unit, record.units, record.n_tasks) == ("record", 50, 4)
    assert record.mu == pytest.approx(0.2)
    person = Plan(JointGram(), Gaussian(0.2), n_tasks=4, unit=Unit.person(50, most=3), delta=1e-6).guarantee
    assert (person.unit, person.mu) == ("person", pytest.approx(0.6))
    assert "each record of any of the 4 tasks" in str(record)
    assert "A task as a whole is not protected" in str(person)
    assert "not from the task that has the rows" in str(record)


def test_delta_is_of_so_many_records():
    assert plan_of(rows=10_000).delta == 1e-6
    with pytest.raises(PlanError, match="at most 1/10000"):
        plan_of(rows=10_000, delta=1e-3)


@pytest.mark.parametrize("trust", [Trust.silo(), Trust.secure_sum()], ids=str)
def test_tasks_add_noise_to_the_sums_of_their_records(trust):
    plan = plan_of(trust=trust, delta=1e-6).calibrate(epsilon=200.0)
    done = run(plan, TASKS, random_state=0)
    away = done.board.releases[0].value - gram_of(TASKS, JointGram().only)
    assert np.abs(away).max() < 5 * done.board.releases[0].noise
    assert plan.longest_message == 6
    plan.check(done.board)


def test_a_board_is_the_same_again_and_gives_every_model():
    done = run(plan_of(delta=1e-6).calibrate(1.0), TASKS, random_state=3)
    again = replay(done.plan, done.board, TASKS.only("c"))
    assert again["own"].tolist() == [40]
    assert Plan.from_toml(done.plan.to_toml(), [JointGram, Channel, Outer]) == done.plan
    done.plan.check(done.board)


def test_a_record_is_a_task_of_one_row_with_a_key_of_its_own():
    block = next(TASKS.blocks([np.arange(4)], seeds=np.arange(4, dtype=np.uint64)))
    records = block.records()
    assert records.X.shape == (46, 1, 2)
    assert len(set(records.keys.tolist())) == 46
    assert np.array_equal(records.y[:, 0], TASKS.y)
    alone = next(TASKS.only("c").blocks([np.arange(1)], seeds=np.array([2], dtype=np.uint64))).records()
    assert np.array_equal(alone.keys, records.keys[4:44])  # whatever block a task is in


@dataclass(frozen=True)
class Centred(JointGram):
    """Contributions about the mean of those in the same block: a record moves all others' contributions."""

    def send(self, states, block, board):
        said, states = super().send(states, block, board)
        return said - said.mean(axis=0), states


@dataclass(frozen=True)
class Remembers(JointGram):
    """Says something else in later rounds, of what it has kept."""

    def send(self, states, block, board):
        said, _ = super().send(states, block, board)
        return said, {"said": said}


def test_what_depends_on_other_records_is_found():
    check_algorithm(JointGram(), TASKS, unit=Unit.record(50))
    with pytest.raises(AlgorithmError, match="mixes rows"):
        check_algorithm(Centred(), TASKS, unit=Unit.record(50))
    with pytest.raises(AlgorithmError, match="no states between rounds"):
        run(plan_of(Remembers(), mechanism=NoNoise()), TASKS)


def test_what_is_refused_before_anything_is_computed():
    with pytest.raises(PlanError, match="sent by each record"):
        Plan(JointGram(), n_tasks=4)
    with pytest.raises(PlanError, match="sent by each task"):
        plan_of(SharedPrior(Regression(2)))
    with pytest.raises(PlanError, match="asks all records in every round"):
        plan_of(sampling=Poisson(0.5))
    with pytest.raises(PlanError, match="rows must be a whole number"):
        plan_of(rows=0)
    with pytest.raises(PrivateDataError, match="at most 45 records"):
        run(plan_of(rows=45, mechanism=NoNoise()), TASKS)
    with pytest.raises(PrivateDataError, match="weight above 0"):
        run(plan_of(mechanism=NoNoise()), replace(TASKS, weight=np.arange(46.0)))


def test_sums_that_no_records_can_have_are_refused():
    channel = Channel(2, lift=Plain())
    channel.check_sums(np.array([[3 * GRID, -3 * GRID]]), most=3)
    with pytest.raises(InputError, match="larger than that of 3 messages"):
        channel.check_sums(np.array([[3 * GRID + 1, 0]]), most=3)


def test_correlated_noise_counts_the_messages_of_records():
    plan = plan_of(JointGram(rounds=4), 50, mechanism=Toeplitz(), delta=1e-6).calibrate(1.0)
    done = run(plan, TASKS, random_state=0)
    assert done.guarantee.unit == "record"
    with pytest.raises(PlanError, match="do not fit into integers"):
        run(plan_of(JointGram(rounds=4), 2**40, mechanism=Toeplitz()).calibrate(1.0), TASKS)


def test_an_account_of_records_holds_runs_by_task_under_replace(tmp_path):
    """To replace a record is to replace its task; who zeroes a record does not silence its task."""
    plan = plan_of(delta=1e-6).calibrate(1.0)
    tasks = Ledger(2.0, 1e-6)
    with pytest.raises(PlanError, match="which says of a task of k records that it is a group"):
        run(plan, TASKS, ledger=tasks)
    assert not tasks.history
    Ledger.create(tmp_path / "ours", "wards", epsilon=2.0, delta=1e-6, n_tasks=50, unit="record")
    ledger = Ledger.open(tmp_path / "ours")
    run(plan, TASKS, ledger=ledger)
    assert ledger.unit == "record"
    assert ledger.spent == pytest.approx(1.0, abs=1e-3)
    by_task = Plan(SharedPrior(Regression(2)), n_tasks=4, delta=1e-6).calibrate(1.0)
    ledger.charge(by_task.fingerprint, by_task.cost)
    alone = Ledger(2.0, 1e-6)
    alone.charge(by_task.fingerprint, by_task.cost)
    assert ledger.balance.squares == pytest.approx(plan.guarantee.mu**2 + alone.balance.squares)
    charged = replace(by_task.guarantee, all_runs=ledger.balance.all_runs)
    assert "a test of one record, and not of a task as a whole, detects" in str(charged)
    assert Guarantee.from_dict(json.loads(charged.to_json())) == charged
    assert "unit" not in alone.balance.all_runs.to_dict()  # as in files of earlier versions
    silent = Ledger(2.0, 1e-6, relation="zero_out", unit="record")
    with pytest.raises(PlanError, match="Got a price for each task"):
        silent.charge(by_task.fingerprint, by_task.cost_under("zero_out"))


def test_a_run_that_was_ended_goes_on_to_the_same_board(tmp_path):
    plan = plan_of(JointGram(rounds=3), delta=1e-6).calibrate(1.0)

    def ended(posted):
        if posted.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(plan, TASKS, journal=tmp_path / "ours", random_state=1, progress=ended)
    done = run(plan, TASKS, journal=tmp_path / "ours", random_state=1)
    assert done.board.head == run(plan, TASKS, random_state=1).board.head


def test_no_words_of_a_run_say_that_a_task_is_protected():
    """Every place that says whose data are hidden says a record's: in a line, on a page."""
    done = run(plan_of(delta=1e-6).calibrate(1.0), TASKS)
    assert "for each record" in str(done)
    assert "privacy for each record" in short_guarantee(done.guarantee)
    page = public_page(PublicPart(done.plan, done.board, done.guarantee))
    assert "could detect one record" in page
    assert "about 2 records at once" in page
    assert "--unit" in page
    for claim in ("about one task", "one task's data", "tasks of one owner", "what one of them holds"):
        assert claim not in page


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (2 / 3, False), (3 / 2, False)])
def test_noise_of_sums_of_records_has_the_law_that_is_priced(factor, accepted):
    """Kolmogorov and Smirnov at 1e-4, over the noise of 150 runs: an honest law fails so often."""
    channel, plan = JointGram(rounds=1).only, plan_of(JointGram(rounds=1), delta=1e-6).calibrate(1.0)
    bare = channel.steps * channel.total(np.column_stack([TASKS.X, TASKS.y]), exact=True)
    made = [run(plan, TASKS, random_state=seed).board.releases[0] for seed in range(150)]
    priced = factor * channel.sensitivity("replace") / plan.mechanism.mu
    scores = np.concatenate([(release.value - bare) / priced for release in made])
    assert (kstest(scores, "norm").pvalue > 1e-4) == accepted


def test_of_a_person_so_many_records_send_whatever_their_order():
    """Three of a person's twenty rows send: if all change, a sum moves by three sensitivities: no more."""
    rows, names = len(TASKS.y), np.repeat(TASKS.ids, TASKS.sizes)
    person = np.arange(rows)
    person[4:44] = np.where(np.arange(40) % 2, 100, 101)  # two persons in turn
    channel, unit = JointGram(rounds=1).only, Unit.person(50, most=3)
    plan = Plan(JointGram(rounds=1), NoNoise(), n_tasks=4, unit=unit)

    def sum_with(row):
        X, y = TASKS.X.copy(), TASKS.y.copy()
        X[person == 100], y[person == 100] = row[:2], row[2]
        shuffled = np.random.default_rng(0).permutation(rows)
        X, y, weight = X[shuffled], y[shuffled], np.ones(rows)
        tasks = Tasks.from_arrays(X, y, names[shuffled], weight, person=person[shuffled])
        done = run(plan, tasks, engine=Local(block=1))
        assert done.private.models["own"].tolist() == SIZES  # all rows are for the model at home
        return done.board.releases[0].value

    one, other = (99.0, 0.0, 0.0), (0.0, 0.0, -7.0)
    moved = np.linalg.norm(sum_with(one) - sum_with(other))
    assert moved == pytest.approx(3 * channel.sensitivity("replace"), abs=1e-9)
    with pytest.raises(InputError, match="whose each row is nobody has said"):
        run(plan, TASKS)


def test_whose_a_row_is_goes_with_it():
    person = ["x", "y", "x", "x", "y", "x"]
    tasks = Tasks.from_arrays(np.eye(6), np.arange(6.0), [1, 0, 1, 0, 0, 0], person=person)
    assert tasks.y.tolist() == [1, 3, 4, 5, 0, 2]
    assert tasks.turn.tolist() == [0, 0, 1, 1, 0, 1]  # y x y x of task 0, x x of task 1
    assert tasks.select([1, 0]).turn.tolist() == [0, 1, 0, 0, 1, 1]
    records = next(tasks.blocks([np.arange(2)])).records(most=1)
    assert records.y[:, 0].tolist() == [1, 3, 0]
    with pytest.raises(InputError, match="person must have one entry a row, 6"):
        Tasks.from_arrays(np.eye(6), np.arange(6.0), [1, 0, 1, 0, 0, 0], person=person[:5])


def test_sums_that_tasks_make_apart_cannot_wrap_together():
    """Tasks lie as high as the range of a sum allows: one record of another must not decide a sign."""
    rows = 1 << 25
    plan = plan_of(rows=rows, mechanism=Gaussian(0.2))
    check_whole(plan)  # in one process all tasks together have no more records than that
    with pytest.raises(PlanError, match="exact for fewer than"):
        check_whole(plan, apart=True)
    most = (1 << 63) // (plan.n_tasks * GRID**2) - 1
    check_whole(plan_of(rows=most, mechanism=Gaussian(0.2)), apart=True)
    assert plan.n_tasks * most * GRID**2 < 1 << 63 <= plan.n_tasks * rows * GRID**2


def test_two_devices_refuse_more_records_than_the_plan_is_for():
    """Either of the two alone would have held few enough."""
    plan = plan_of(rows=45, delta=1e-6).calibrate(epsilon=1.0)
    with pytest.raises(PrivateDataError, match="at most 45 records"):
        run(plan, TASKS, engine=MultiDevice((Local(), Local())), random_state=0)
