"""Plans that start from an earlier board: what they take over, what they refuse, what it saves."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from typer.testing import CliRunner

from cloister import Plan, SharedPriorClassifier, SharedPriorRegressor, Tasks, run
from cloister.algorithms import Joint, Locate, Mean, MeanRegularized, SharedPrior, Subspace
from cloister.cli import app
from cloister.core.findings import EarlierPrior, ReadFrom
from cloister.engines.check import check_algorithm
from cloister.engines.run import replay
from cloister.errors import BillboardError, InputError, PlanError
from cloister.learners import Classification, LeastSquares, Regression
from cloister.mechanisms import NoNoise
from cloister.plan.algorithm import Budget
from cloister.store.billboard import Billboard

DIM = 3


def year(seed: int, shift: float = 0.0, m: int = 120, n: int = 20) -> tuple[Tasks, Tasks]:
    """Draw rows of tasks whose weights lie around a common mean; a later year's mean may have moved."""
    weights = np.array([0.4, -0.3, 0.2]) + shift + np.random.default_rng(1).normal(0, 0.1, (m, DIM))
    rng = np.random.default_rng(seed)
    parts = []
    for count in (n, 30):
        X = np.concatenate([np.ones((m, count, 1)), rng.uniform(-1, 1, (m, count, DIM - 1))], axis=2)
        X /= math.sqrt(DIM)
        y = np.einsum("knd,kd->kn", X, weights) + rng.normal(0, 0.3, (m, count))
        parts.append(Tasks.from_list(list(X), list(np.clip(y, -1, 1))))
    return parts[0], parts[1]


def planned(structure, epsilon, m=120):
    return Plan(SharedPrior(Regression(DIM), structure), n_tasks=m).calibrate(epsilon)


def error(plan, train, test, seed=0):
    coef = run(plan, train, random_state=seed).private.models["coef"]
    each = np.repeat(np.arange(len(test)), test.sizes)
    return float(np.mean((test.y - (test.X * coef[each]).sum(axis=1)) ** 2))


@pytest.fixture(scope="module", params=[Joint, Mean])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def first(kind):
    """Return the first year's plan, its board and what it found."""
    plan = planned(kind(), 2.0)
    board = run(plan, year(0)[0], random_state=7).board
    return plan, board, plan.prior_on(board)


def test_a_mean_is_weighed_by_noise_and_by_how_far_tasks_moved():
    rng, old_noise, new_noise = np.random.default_rng(0), 0.3, 0.1
    truth = rng.normal(size=4000)
    earlier = EarlierPrior(tuple(truth + old_noise * rng.normal(size=4000)), old_noise**2)
    same = truth + new_noise * rng.normal(size=4000)
    found, variance = earlier.combined_mean(same, new_noise**2)
    best = 1 / (1 / old_noise**2 + 1 / new_noise**2)
    assert np.square(found - truth).mean() == pytest.approx(best, rel=0.1)
    assert variance == pytest.approx(best, rel=0.05)
    # Where tasks have moved, old and new noise alone would weigh the old mean far too much.
    moved = truth + 1.0 * rng.normal(size=4000)
    found, _ = earlier.combined_mean(moved + new_noise * rng.normal(size=4000), new_noise**2)
    assert np.square(found - moved).mean() < 1.05 * new_noise**2
    # Few numbers: noise alone must not look like a move.
    small = EarlierPrior((0.0,) * 3, 1e-4)
    drawn = rng.normal(size=(2000, 3))
    errors = [np.square(small.combined_mean(mean, 1.0)[0]).mean() for mean in drawn]
    assert np.mean(np.array(errors) > 0.1) < 0.06


def test_a_covariance_is_weighed_by_noise():
    earlier = EarlierPrior((0.0, 0.0), 1.0, (1.0, 0.0, 0.0, 1.0), 0.2)
    found, noise = earlier.combined_covariance(3 * np.eye(2), 0.2)
    assert found == pytest.approx(2 * np.eye(2))
    assert noise == pytest.approx(0.2 / math.sqrt(2))
    assert earlier.combined_covariance(3 * np.eye(2), 0.0)[0] == pytest.approx(3 * np.eye(2))


def test_a_started_run_is_verified_and_replayed_like_any_other(kind, first):
    plan = planned(kind(start_from=first[2]), 0.5)
    assert Plan.from_toml(plan.to_toml()) == plan
    train, _ = year(1)
    finished = run(plan, train, random_state=3)
    plan.check(finished.board)
    again = replay(plan, finished.board, train)
    assert again["coef"] == pytest.approx(finished.private.models["coef"])
    assert finished.board.before(0)["mean"].tolist() == list(first[2].mean)
    check_algorithm(plan.algorithm, train)
    assert plan.prior_on(finished.board).source == finished.board.head.hex()  # and the year after


def test_the_fingerprint_covers_every_number_it_starts_from(kind, first):
    start = first[2]
    plan = planned(kind(start_from=start), 0.5)
    others = [
        replace(start, mean=(start.mean[0] + 1e-9, *start.mean[1:])),
        replace(start, variance=2 * start.variance),
        replace(start, source="00"),
        replace(start, doubts=()),
        replace(start, answers=tuple(tuple(2 * x for x in answer) for answer in start.answers)),
    ]
    assert start.doubts
    assert start.answers
    if start.covariance:
        others.append(replace(start, covariance=(9.0, *start.covariance[1:])))
    prints = {
        replace(plan, algorithm=SharedPrior(Regression(DIM), kind(start_from=s))).fingerprint for s in others
    }
    assert len(prints | {plan.fingerprint}) == len(others) + 1
    board = run(plan, year(1)[0], random_state=3).board
    other = replace(plan, algorithm=SharedPrior(Regression(DIM), kind(start_from=others[0])))
    with pytest.raises(BillboardError, match="another plan"):
        other.check(board)


def test_private_numbers_cannot_be_planted_on_the_earlier_board(first):
    plan, board, _ = first
    *before, last = board.records
    private = year(0)[0].y[:DIM]
    planted = replace(last, public={**last.public, "mean": private})
    with pytest.raises(BillboardError, match="not computed as"):
        plan.prior_on(replace(board, records=(*before, planted)))
    opening = replace(board.records[0], public={**board.records[0].public, "mean": private})
    with pytest.raises(BillboardError, match="start was not computed"):
        plan.prior_on(replace(board, records=(opening, *board.records[1:])))
    with pytest.raises(BillboardError, match="another plan"):
        replace(plan, n_tasks=121).prior_on(board)
    with pytest.raises(PlanError, match="finished board"):
        plan.prior_on(board.before(2))


def test_doubts_about_the_earlier_run_are_handed_on(kind, first):
    seeded = planned(kind(start_from=first[2]), 0.5)
    assert not seeded.guarantee.holds
    assert "starts from an earlier run, and the noise is drawn from a seed" in str(seeded.guarantee)
    quiet = Plan(SharedPrior(Regression(DIM), kind()), NoNoise(), n_tasks=120)
    found = quiet.prior_on(run(quiet, year(0)[0]).board)
    assert not planned(kind(start_from=found), 0.5).guarantee.holds
    plan = planned(kind(), 2.0)
    sound = plan.prior_on(run(plan, year(0)[0]).board)
    guarantee = planned(kind(start_from=sound), 0.5).guarantee
    assert guarantee.holds
    assert guarantee.epsilon <= 0.5
    assert f"earlier board {sound.source[:16]}" in str(guarantee)


def test_who_vouches_for_a_start_is_said(kind, first):
    """Typed in: no guarantee. Read off a board: nothing to add. From a plan file: its author's word."""
    sound = replace(first[2], doubts=())
    typed = planned(kind(start_from=sound), 0.5)
    assert not typed.guarantee.holds
    assert typed.not_compared == ""
    on_file = Plan.from_toml(typed.to_toml())
    assert on_file.guarantee.holds
    assert "nobody here has compared it" in str(on_file)
    seen = planned(kind(start_from=replace(first[2], doubts=()).mark_read(ReadFrom.BOARD)), 0.5)
    assert seen.guarantee == on_file.guarantee
    assert seen.not_compared == ""
    assert "compared" not in str(seen)


def test_without_anything_heard_it_is_as_if_there_were_no_start(kind):
    nothing = EarlierPrior((0.0,) * DIM, 1.0)
    train, _ = year(1)
    models = [run(planned(s, 1.0), train, random_state=3).private.models for s in (kind(nothing), kind())]
    for name, found in models[0].items():
        assert found == pytest.approx(models[1][name])
    # A board that heard nothing but noise says so little that it does not matter.
    plan = planned(kind(), 1e-3)
    deaf = plan.prior_on(run(plan, year(0)[0], random_state=0).board)
    assert not any(deaf.mean)
    assert not {"level", "trust"} & set(deaf.known)
    found = run(planned(kind(deaf), 1.0), train, random_state=3).private.models
    assert found["coef"] == pytest.approx(models[1]["coef"], rel=1e-3, abs=1e-4)


def test_known_answers_are_not_bought_again(kind, first):
    fresh, started = planned(kind(), 1.0), planned(kind(start_from=first[2]), 1.0)
    assert set(first[2].known) >= {"scale", "trust"}
    assert math.fsum(r.share for r in started.rounds) == pytest.approx(1.0)
    scale = tuple(range(len(Regression(DIM).questions["scale"].unknown)))
    all_known = replace(first[2], known=("level", "scale", "trust"), answers=((-3.0, 0.7), scale, (0.9, 0.1)))
    quiet = planned(kind(start_from=all_known), 1.0).rounds
    assert {r.channels for r in quiet} == {fresh.rounds[1].channels}
    partly = replace(all_known, known=("scale",), answers=all_known.answers[1:2])
    rounds = planned(kind(start_from=partly), 1.0).rounds
    assert rounds[0].channels == fresh.rounds[0].channels
    assert math.fsum(r.share for r in rounds) == pytest.approx(1.0)


def test_an_answer_that_this_learner_does_not_ask_for_is_handed_on():
    """A classifier asks nothing about the noise in rows; what an earlier board says of it is not lost."""
    start = EarlierPrior((0.1,) * DIM, 0.01, known=("level", "trust"), answers=((-3.0, 0.7), (0.9, 0.1)))
    plan = Plan(SharedPrior(Classification(DIM), Mean(start)), n_tasks=120).calibrate(2.0)
    train = year(1)[0]
    tasks = Tasks.from_arrays(train.X, (train.y > 0).astype(int), np.repeat(np.arange(120), train.sizes))
    found = plan.prior_on(run(plan, tasks, random_state=3).board)
    assert found.known[-2:] == ("level", "trust")
    assert found.answers[-2:] == start.answers


def test_a_tenth_of_epsilon_does_after_a_good_year_and_drift_is_followed(kind, first):
    train, test = year(1)
    fresh = [error(planned(kind(), epsilon), train, test) for epsilon in (2.0, 0.1)]
    started = error(planned(kind(start_from=first[2]), 0.1), train, test)
    assert started < 1.03 * fresh[0] < 0.97 * fresh[1]
    moved, moved_test = year(1, shift=0.3)
    kept = replay(first[0], first[1], moved)["coef"]
    each = np.repeat(np.arange(len(moved_test)), moved_test.sizes)
    unmoved = float(np.mean((moved_test.y - (moved_test.X * kept[each]).sum(axis=1)) ** 2))
    followed = error(planned(kind(start_from=first[2]), 2.0), moved, moved_test)
    assert followed < 0.98 * unmoved


def test_refusals_say_what_to_do(first):
    with pytest.raises(PlanError, match="same codebook"):
        SharedPrior(Regression(DIM + 1), Joint(start_from=first[2]))
    with pytest.raises(PlanError, match="must have 9 numbers"):
        replace(first[2], covariance=(1.0,))
    with pytest.raises(PlanError, match="question of scale with 2 numbers"):
        SharedPrior(Regression(DIM), Joint(replace(first[2], known=("scale",), answers=((1.0, 2.0),))))
    low_rank = Plan(SharedPrior(Regression(DIM), Subspace()), n_tasks=120).calibrate(1.0)
    with pytest.raises(PlanError, match="structure Joint"):
        low_rank.prior_on(run(low_rank, year(0)[0], random_state=0).board)
    mean = Plan(MeanRegularized(LeastSquares(DIM), rounds=2), n_tasks=120).calibrate(1.0)
    with pytest.raises(PlanError, match="Got a board of MeanRegularized"):
        mean.prior_on(run(mean, year(0)[0], random_state=0).board)


# ------------------------------------------------------------------ estimators

BOUNDS = {"age": (5, 20), "target": (0, 50)}


def table(seed):
    rng = np.random.default_rng(seed)
    school = np.repeat(np.arange(80), 6)
    age = rng.uniform(6, 18, 480)
    score = 2 * age + np.random.default_rng(1).normal(0, 3, 80)[school] + rng.normal(0, 3, 480)
    return {"school": school, "age": age}, np.clip(score, 0, 50)


@pytest.fixture(scope="module")
def fitted():
    return SharedPriorRegressor("school", epsilon=2.0, bounds=BOUNDS, random_state=0).fit(*table(0))


def test_an_estimator_starts_from_a_fitted_one_a_folder_or_a_plan_and_its_board(fitted, tmp_path):
    folder = fitted.save(tmp_path / "run", models=False)
    ways = (fitted, folder, str(folder), (fitted.plan_, fitted.billboard_))
    later = [SharedPriorRegressor("school", epsilon=0.2, bounds=BOUNDS, start_from=way) for way in ways]
    prints = {model.plan(80, fitted.codebook_).fingerprint for model in later}
    assert len(prints) == 1
    assert prints != {SharedPriorRegressor("school", epsilon=0.2).plan(80, fitted.codebook_).fingerprint}
    model = clone(later[1]).set_params(random_state=1).fit(*table(1))
    assert fitted.billboard_.head.hex()[:16] in str(model.summary())
    fresh = SharedPriorRegressor("school", epsilon=0.2, bounds=BOUNDS, random_state=1).fit(*table(1))
    assert model.score(*table(2)) > fresh.score(*table(2))
    saved = model.save(tmp_path / "later")
    assert "start_from" not in (saved / "estimator.toml").read_text()


def test_an_estimator_refuses_what_it_cannot_start_from(fitted):
    def starting(**given):
        return SharedPriorRegressor("school", random_state=0, **{"bounds": BOUNDS, **given})

    wider = {"age": (5, 21), "target": (0, 50)}
    for given, message in (
        ({"start_from": fitted, "bounds": wider}, "same codebook: 'age' differs"),
        ({"start_from": starting()}, "that is not fitted"),
        ({"start_from": 3}, "must be a fitted estimator"),
        ({"start_from": fitted, "structure": "lowrank"}, "starts anew"),
    ):
        with pytest.raises(InputError, match=message):
            starting(**given).fit(*table(1))


def test_classes_start_from_an_earlier_board_too():
    rng = np.random.default_rng(0)
    person, x = np.repeat(np.arange(100), 8), rng.uniform(-1, 1, 800)
    yes = rng.random(800) < 1 / (1 + np.exp(-4 * x))
    bounds = {"x": (-1, 1), "target": [False, True]}
    first = SharedPriorClassifier("person", epsilon=4.0, bounds=bounds, random_state=0)
    first.fit({"person": person, "x": x}, yes)
    later = SharedPriorClassifier("person", epsilon=0.05, bounds=bounds, random_state=1, start_from=first)
    later.fit({"person": person, "x": x}, yes)
    assert later.predict({"person": [999, 999], "x": [-0.9, 0.9]}).tolist() == [False, True]
    assert isinstance(later.billboard_, Billboard)


def test_targets_are_not_searched_for_again():
    def located(structure, epsilon):
        return Plan(SharedPrior(Regression(1), structure, Locate()), n_tasks=200).calibrate(epsilon)

    def tasks(seed):
        rng = np.random.default_rng(seed)
        level = -0.4 + 0.004 * np.random.default_rng(1).normal(size=(200, 1))
        return Tasks.from_list([np.ones((6, 1))] * 200, list(level + 0.004 * rng.normal(size=(200, 6))))

    plan = located(Joint(), 2.0)
    board = run(plan, tasks(0), random_state=0).board
    earlier = plan.prior_on(board)
    assert earlier.found == 2
    assert (earlier.center, earlier.unit) == (board["located_center"], board["located_unit"])
    later = located(Joint(start_from=earlier), 0.1)
    inside = replace(later.algorithm, locate=None)
    assert later.rounds == inside.schedule(200, Budget(later.mechanism.budget))
    finished = run(later, tasks(1), random_state=1)
    later.check(finished.board)
    assert float(finished.board["located_center"]) == earlier.center
    again = replay(later, finished.board, tasks(1))["coef"]
    assert again == pytest.approx(finished.private.models["coef"])
    check_algorithm(later.algorithm, tasks(1))
    truth = -0.4 + 0.004 * np.random.default_rng(1).normal(size=200)
    fresh = run(located(Joint(), 0.1), tasks(1), random_state=1).private.models["coef"]
    errors = [np.square(coef[:, 0] - truth).mean() for coef in (again, fresh)]
    assert errors[0] < 1.02 * errors[1]
    assert errors[0] < 0.004**2 / 6  # a task's own six rows, no more
    assert replace(earlier, center=0.0) != earlier
    assert located(Joint(start_from=replace(earlier, center=0.0)), 0.1).fingerprint != later.fingerprint


def test_groups_start_from_the_common_prior():
    def grouped(seed):
        X, y = table(seed)
        return X | {"town": X["school"] % 4}, y

    settings = {"bounds": BOUNDS, "groups": "town", "random_state": 0}
    first = SharedPriorRegressor("school", epsilon=4.0, **settings).fit(*grouped(0))
    later = SharedPriorRegressor("school", epsilon=0.2, start_from=first, **settings).fit(*grouped(1))
    assert later.plan_.algorithm.start_from.mean == first.plan_.prior_on(first.billboard_).mean
    later.plan_.check(later.billboard_)
    assert "a typical group's own mean" in str(later.plan_.forecast())


def test_a_start_made_by_hand_is_no_public_board(kind):
    """Numbers that were not read off a verified board may be anybody's data: the guarantee is void."""
    by_hand = EarlierPrior((0.5,) * DIM, 0.01)
    guarantee = planned(kind(by_hand), 1.0).guarantee
    assert not guarantee.holds
    assert "verified board" in str(guarantee)


@pytest.mark.parametrize("wrong", [{"unit": 0.0}, {"center": math.nan}, {"mean": (math.inf,) * DIM}])
def test_numbers_that_no_board_has_are_refused(wrong):
    with pytest.raises(PlanError, match="finite"):
        EarlierPrior(**({"mean": (0.0,) * DIM, "variance": 1.0} | wrong))


def test_a_head_that_was_typed_in_vouches_for_nothing(kind, first, tmp_path):
    """Numbers beside somebody's head may be anybody's data; a plan file is as its author says."""
    for start in (
        EarlierPrior((0.5,) * DIM, 0.01, source="ab" * 32),
        replace(first[2], mean=(0.5,) * DIM),  # a true head, and other numbers
    ):
        guarantee = planned(kind(start), 1.0).guarantee
        assert not guarantee.holds
        assert "verified board" in str(guarantee)
    plan = planned(kind(first[2]), 1.0)
    for same in (plan, Plan.load(plan.save(tmp_path / "plan.toml")), copy.deepcopy(plan)):
        assert "verified board" not in str(same.guarantee)
        assert same == plan


def test_verify_compares_with_the_earlier_run(fitted, tmp_path):
    earlier = fitted.save(tmp_path / "first", models=False)
    later = SharedPriorRegressor("school", epsilon=0.2, bounds=BOUNDS, random_state=1, start_from=earlier)
    folder = later.fit(*table(1)).save(tmp_path / "later", models=False)
    other = SharedPriorRegressor("school", epsilon=2.0, bounds=BOUNDS, random_state=5).fit(*table(3))
    elsewhere = other.save(tmp_path / "other", models=False)

    def verify(*words):
        done = CliRunner().invoke(app, ["verify", *map(str, words)])
        return done.exit_code, " ".join(done.output.split())

    code, said = verify(folder)
    assert code == 0
    assert f"whose board has the head {fitted.billboard_.head.hex()}" in said
    assert "what it starts from was not compared" in said
    assert verify(folder, "--earlier", earlier)[0] == 0
    assert "ok what it starts from is on the earlier board" in verify(folder, "--earlier", earlier)[1]
    assert verify(folder, "--earlier", elsewhere)[0] == 1
    assert "NO what it starts from" in verify(earlier, "--earlier", elsewhere)[1]
