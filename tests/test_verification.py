"""A board may say what its plan makes of its releases, and nothing in the bits between: `Plan.check`.

Whoever owns a board can compute its hashes anew. Here a number, "somebody's target", is written where no
noise covers it, in each of the ways that are left to a curator with a pen.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from cloister import Billboard, Plan, Tasks, run
from cloister.algorithms import FedAvg, MeanRegularized, SharedPrior
from cloister.cli import app
from cloister.core.channel import Channel
from cloister.errors import BillboardError
from cloister.learners import Convex, Descent, LeastSquares, Regression
from cloister.mechanisms import Gaussian, L2Laplace, Toeplitz
from cloister.store import Release

SECRET = 0.7215389417231871
M, DIM = 30, 3


def tasks() -> Tasks:
    rng = np.random.default_rng(0)
    X = [np.c_[np.ones(5), rng.uniform(-1, 1, (5, DIM - 1))] / 3**0.5 for _ in range(M)]
    return Tasks.from_list(X, [rng.uniform(-1, 1, 5) for _ in range(M)])


@pytest.fixture(scope="module")
def mean() -> tuple[Plan, Billboard]:
    plan = Plan(MeanRegularized(LeastSquares(DIM), rounds=6), n_tasks=M).calibrate(1.0)
    return plan, run(plan, tasks(), random_state=0).board


@pytest.fixture(scope="module")
def prior() -> tuple[Plan, Billboard]:
    """Of so little budget that it heard nothing: much of what it says is zeros."""
    plan = Plan(SharedPrior(Regression(DIM)), n_tasks=M).calibrate(0.01)
    return plan, run(plan, tasks(), random_state=0).board


def rewritten(board, change, release=lambda t, value: value, tmp_path=None):
    """Return a board with changed arrays and releases and new hashes, by way of a file."""
    out = Billboard(board.plan, board.capacity, noise=board.noise)
    for t, record in enumerate(board.records):
        public = {name: np.asarray(change(t, name, array)) for name, array in record.public.items()}
        old = record.release
        new = None if old is None else Release(release(t - 1, old.value), **old.facts())
        out = out._append(new, public)
    return out if tmp_path is None else Billboard.load(out.save(tmp_path / "board"))


def complex_numbers(t, name, array):
    return array + 1j * SECRET * 2.0**-41 if array.dtype == "f8" else array


def single_floats(t, name, array):
    return array.astype("f4") if array.dtype == "f8" else array


def larger_type(t, name, array):
    return array.astype("f8") if array.dtype.kind in "iu" else array.astype(array.dtype.newbyteorder("="))


def reshaped(t, name, array):
    return array[None]


def zeros_that_are_not(t, name, array):
    return np.where(array == 0, SECRET * 2.0**-60, array) if array.dtype == "f8" else array


def negative_zeros(t, name, array):
    return np.where(array == 0, -0.0, array) if array.dtype == "f8" else array


def a_nan_with_a_payload(t, name, array):
    return np.full(array.shape, np.uint64(0x7FF8_0000_DEAD_BEEF).view("f8")) if array.dtype == "f8" else array


def a_thousandth_of_a_millionth(t, name, array):
    return array * (1 + 1e-9) if array.dtype == "f8" else array


PENS = [complex_numbers, single_floats, reshaped, zeros_that_are_not, negative_zeros, a_nan_with_a_payload,
        a_thousandth_of_a_millionth]  # fmt: skip


@pytest.mark.parametrize("pen", PENS)
def test_arrays_hold_what_was_computed_and_no_more(prior, pen, tmp_path):
    plan, board = prior
    plan.check(rewritten(board, lambda t, name, array: array, tmp_path=tmp_path), exact=True)
    with pytest.raises(BillboardError, match="was not computed as the plan's algorithm does it"):
        plan.check(rewritten(board, pen, tmp_path=tmp_path))
    last = len(board.records) - 1  # and in one record alone
    one = rewritten(board, lambda t, name, array: pen(t, name, array) if t == last else array)
    with pytest.raises(BillboardError, match=f"Release {last - 1} was not computed"):
        plan.check(one)


@pytest.mark.parametrize(
    "off",
    [lambda v: v * (1 + 1e-13), lambda v: np.nextafter(v, 9e9), lambda v: np.where(v == v[0], -0.0, v),
     lambda v: np.where(v == v[0], np.nan, v), lambda v: np.where(v == v[0], np.inf, v)],
)  # fmt: skip
def test_releases_with_exact_noise_are_whole_numbers_of_steps(mean, off):
    """Also where all that is computed from them is computed from what is said there."""
    plan, board = mean
    with pytest.raises(BillboardError, match="Release 2 is not made of whole numbers of its channel's steps"):
        plan.check(rewritten(board, lambda t, n, a: a, lambda t, v: off(v) if t == 2 else v))
    assert all(plan.rounds[0].channels[0].on_grid(release.value) for release in board.releases)


def test_steps_of_every_size_have_a_grid():
    rng = np.random.default_rng(0)
    for channel in (Channel(5), Channel(5, clip=0.3), Channel(1)):
        for most in (1, 2**20, 2**49):
            value = rng.integers(-most, most, channel.size) * channel.steps
            assert channel.on_grid(value)
            assert not channel.on_grid(value + channel.steps / 3)
    assert Channel(1).on_grid(np.array([1e300]))  # so many steps that every float is one
    assert not Channel(1).on_grid(np.array([np.inf]))


@pytest.mark.parametrize("mechanism", [Gaussian(exact=False), L2Laplace(), Toeplitz()])
def test_noise_that_has_no_grid_is_not_asked_for_one(mechanism):
    plan = Plan(MeanRegularized(LeastSquares(DIM), rounds=4), mechanism, n_tasks=M).calibrate(1.0)
    board = run(plan, tasks(), random_state=0).board
    plan.check(board, exact=True)


def last_bits(t, name, array, bits=8):
    """Write a byte of the secret into the last bits of a number, as a leaky curator would: 2^-44 of it."""
    if array.dtype != "f8" or not array.any() or not np.isfinite(array).all() or not t:
        return array
    found = np.array(array)
    flat = found.reshape(-1)[abs(found).argmax() :][:1].view(np.int64)
    flat[0] = (flat[0] & ~0xFF) | ((int(SECRET * 2**48) >> 8 * t) & 0xFF)
    return found


def test_the_last_bits_hold_nothing_where_they_are_compared(prior, tmp_path):
    """A board of another processor must pass, and so this one does; but not where every bit is compared."""
    plan, board = prior
    leaky = rewritten(board, last_bits)
    plan.check(leaky)
    with pytest.raises(BillboardError, match="to the last bit, on this machine"):
        plan.check(leaky, exact=True)
    plan.save(tmp_path / "plan.toml")
    for kept, words, code in (
        (board, (), 0),
        (board, ("--exact",), 0),
        (leaky, (), 0),
        (leaky, ("--exact",), 1),
    ):
        kept.save(tmp_path / "board")
        done = CliRunner().invoke(app, ["verify", str(tmp_path), *words])
        assert done.exit_code == code, done.output
        said = "follows from the releases: to the last bit" in done.output
        assert said == (kept is board)


class Walking(MeanRegularized):
    """Adds up what others average: an error of one round is in all that follow."""

    def update(self, release, board):
        return {"mean": board["mean"] + super().update(release, board)["mean"]}


def test_what_is_hidden_below_the_tolerance_does_not_add_up():
    """Each round follows from the one before as computed here: not as it was posted, a little beside it."""
    plan = Plan(Walking(LeastSquares(DIM), rounds=80), n_tasks=M).calibrate(1.0)
    board = run(plan, tasks(), random_state=0).board
    own, drifting = board.before(0), Billboard(board.plan, board.capacity, noise=board.noise)
    for t, record in enumerate(board.records):
        public = record.public
        if t:
            public = plan.algorithm.update(record.release, own)
            shift = 1e-13 * abs(public["mean"]).max()  # each time within what rounding may do
            public = {**public, "mean": public["mean"] + shift}
        drifting = drifting._append(record.release, public)
        own = drifting
    with pytest.raises(BillboardError, match="was not computed"):
        plan.check(drifting)


def test_numbers_of_32_bits_may_be_rounded_otherwise_once():
    plan = Plan(FedAvg(Convex(LeastSquares(DIM)), Descent(0.2), rounds=3), n_tasks=M).calibrate(1.0)
    board = run(plan, tasks(), random_state=0).board
    assert board["mean"].dtype == np.float32

    def moved(roundings):
        def change(t, name, array):
            return array + np.float32(roundings * 2.0**-23 * abs(array).max()) if t == 3 else array

        return rewritten(board, change)

    plan.check(moved(1))
    for wrong in (8, 1000):
        with pytest.raises(BillboardError, match="Release 2 was not computed"):
            plan.check(moved(wrong))


def test_what_a_release_says_of_itself_is_what_was_paid_for(mean):
    plan, board = mean
    for name in ("noise", "denominator", "share"):
        out = Billboard(board.plan, board.capacity, noise=board.noise)
        for record in board.records:
            old = record.release
            changed = None if old is None else replace(old, **{name: getattr(old, name) * (1 + 1e-11)})
            out = out._append(changed, record.public)
        with pytest.raises(BillboardError, match="noise, denominator or share"):
            plan.check(out)
