"""Every exhibit is convicted, its repaired twin is not, and theory agrees with what is measured."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from typer.testing import CliRunner

import cloister
from cloister import Plan
from cloister.algorithms import SharedPrior
from cloister.audit.bound import lower_bound
from cloister.audit.museum import convict, convict_repaired, each, museum
from cloister.audit.museum.first_version_exhibits import LoudTask, ScaleFromData
from cloister.audit.museum.noise_exhibits import (
    Naive,
    Shipped,
    SpreadMessage,
    hit_probability,
)
from cloister.audit.museum.scale_exhibits import PrefixSums, height
from cloister.audit.museum.state_exhibits import Clients, as_broadcast, left_by_the_previous
from cloister.audit.museum.wishart_exhibits import (
    CovarianceRelease,
    LowRankOutputs,
    RelationshipRelease,
    ShippedGaussian,
    WishartNoise,
    directions,
)
from cloister.audit.releases import floating_point_hits
from cloister.cli import app
from cloister.errors import PlanError
from cloister.learners.linear.regression import Regression
from cloister.privacy import tradeoff
from cloister.sampling import Everyone

EXHIBITS = museum()
NAMES = [exhibit.name for exhibit in EXHIBITS]
#: Fewer runs than the command takes; the two mildest flaws need theirs.
FEW = {
    "half-the-noise": 200_000,
    "fixed-size-sampling": 20_000,
    "short-tree": 60_000,
    "counted-records": 200_000,
    "floating-point": 1_000,
}
#: Sizes of tests of a share: a false alarm in 1.7 million.
SD = 5.0


def share_error(p: float, draws: int) -> float:
    return SD * math.sqrt(max(p * (1 - p), 1 / draws) / draws)


# ------------------------------------------------------------------ all of them


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=NAMES)
def test_every_claim_is_refuted_and_every_repair_is_not(exhibit):
    """All refutations together hold at 95 %; a sound repair is wrongly refuted with probability 0.05 / 19."""
    confidence, draws = each(0.95, len(EXHIBITS)), FEW.get(exhibit.name, 5_000)
    broken = convict(exhibit, draws, seed=1, confidence=confidence)
    assert broken.stands
    assert broken.bound.epsilon > 1.25 * exhibit.claim.epsilon  # with room to spare: any seed would do
    assert not convict_repaired(exhibit, draws, seed=1, confidence=confidence).stands


@pytest.mark.slow
@pytest.mark.parametrize("exhibit", EXHIBITS, ids=NAMES)
def test_twenty_seeds(exhibit):
    """Twenty refutations of each; of the 20 x 19 repairs one is wrongly refuted with probability 0.05."""
    for seed in range(20):
        assert convict(exhibit, seed=seed, confidence=each(0.95, len(EXHIBITS))).stands
        assert not convict_repaired(exhibit, seed=seed, confidence=each(0.95, 20 * len(EXHIBITS))).stands


def test_nothing_can_be_selected_for_a_run():
    assert len(set(NAMES)) == len(NAMES)
    public = {type(part).__name__ for exhibit in EXHIBITS for part in (exhibit, exhibit.attack)}
    assert not public & set(cloister.__all__)
    for exhibit in EXHIBITS:
        with pytest.raises(PlanError, match="mechanism must be of a subclass of Mechanism"):
            Plan(SharedPrior(Regression(3)), exhibit.attack, Everyone(), n_tasks=20)


# ------------------------------------------------------------------ Wishart noise


@pytest.mark.parametrize(("dim", "draws"), [(1, 40_000), (5, 20_000), (30, 4_000)])
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_published_noise_makes_impossible_outputs(dim, draws, epsilon):
    release = CovarianceRelease(WishartNoise(epsilon), dim)
    silent, speaking = (release.draw(bool(w), draws, np.random.default_rng(w)) for w in (0, 1))
    expected = -math.expm1(-epsilon)
    assert (silent < 0).mean() == pytest.approx(expected, abs=share_error(expected, draws))
    assert not (speaking < 0).any()


EVENTS = {  # of a release less what the others said and less uu'
    "direction": lambda left, u: np.einsum("i,rij,j->r", u, left, u) < 0,
    "positive": lambda left, u: np.linalg.eigvalsh(left)[:, 0] < 0,
}


def shares(dim, noise, draws):
    """Return the share of runs with each event, with the task silent and speaking."""
    release = CovarianceRelease(noise, dim)
    u = directions(release.others + 1, dim)[0]
    worlds = [release.left(bool(world), draws, np.random.default_rng(world)) for world in (0, 1)]
    return {name: [float(event(left, u).mean()) for left in worlds] for name, event in EVENTS.items()}


def allowed(silent, speaking, mu, error):
    """Say whether mu-GDP allows these shares of one event, both ways, each share give or take `error`."""
    most = [ndtr(ndtri(min(share + error, 1 - 1e-12)) + mu) for share in (silent, speaking)]
    return silent - error <= most[1] and speaking - error <= most[0]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("dim", "draws"), [(1, 40_000), (5, 20_000), (30, 4_000)])
def test_our_noise_makes_none(dim, draws, exact):
    """Events happen in both worlds, no more often in one than mu-GDP allows; errors are 5 sd of a share.

    That u'(what is left)u is negative has probability 1/2 with the task speaking and Phi(mu) with it silent.
    That what is left is not positive is as likely as that for d = 1, and nearly sure in both worlds for more:
    there it tells nothing, and is not asked for. With a twentieth of the noise the first event convicts.
    """
    mu = tradeoff.mu(1.0, 1e-5)
    error = share_error(0.5, draws)
    found = shares(dim, ShippedGaussian(1 / mu, exact), draws)
    assert found["direction"] == [pytest.approx(ndtr(mu), abs=error), pytest.approx(0.5, abs=error)]
    assert all(allowed(*worlds, mu, error) for worlds in found.values())
    assert found["positive"][1] >= found["direction"][1]
    if dim == 1:
        assert found["positive"] == found["direction"]
    faint = shares(dim, ShippedGaussian(1 / (20 * mu), exact), draws)
    assert not allowed(*faint["direction"], mu, error)


def test_the_positive_event_tells_where_it_is_not_sure():
    """d = 2: neither rare nor sure. With a twentieth of the noise it convicts, with all of it it does not."""
    mu, draws = tradeoff.mu(1.0, 1e-5), 20_000
    error = share_error(0.5, draws)
    for exact in (True, False):
        right, faint = (shares(2, ShippedGaussian(1 / (k * mu), exact), draws)["positive"] for k in (1, 20))
        assert 0.5 < right[1] < 0.95
        assert allowed(*right, mu, error)
        assert not allowed(*faint, mu, error)


def test_models_give_the_covariance_away():
    """What is recovered from the others' models alone is as good as the release, round for round."""
    silent = LowRankOutputs(WishartNoise(0.5)).draw(False, 5_000, np.random.default_rng(0))
    expected = -math.expm1(-1.0)
    assert (silent < 0).mean() == pytest.approx(expected, abs=share_error(expected, 5_000))
    faint = LowRankOutputs(ShippedGaussian(0.1), shift=2.0)  # the attack is not blind to Gaussian noise
    worlds = [faint.draw(bool(w), 2_000, np.random.default_rng(w)) for w in (0, 1)]
    assert lower_bound(*worlds, delta=1e-5).epsilon > 3


@pytest.mark.parametrize(("epsilon", "tasks"), [(0.3, 5), (0.3, 20), (0.1, 20)])
def test_impossible_relationships(epsilon, tasks):
    """The double integral is the share measured; models that are speaking never seem silent."""
    release = RelationshipRelease(WishartNoise(epsilon), tasks)
    silent, speaking = (release.draw(bool(w), 4_000, np.random.default_rng(w)) for w in (0, 1))
    expected = release.impossible(epsilon)
    assert (silent < 0).mean() == pytest.approx(expected, abs=share_error(expected, 4_000))
    assert not (speaking < 0).any()
    assert (speaking > 0).any()
    assert expected > -math.expm1(-epsilon)  # worse than for outer products


# ------------------------------------------------------------------ floating point


@pytest.mark.parametrize(("v", "deviation"), [(0.002, 0.01), (1 / 3, 1.0), (1.0, 4.0)])
def test_floating_point_hits(v, deviation):
    """P(hit) in silence is 5/6 P(|n| < 2^(e-2)): 3.2 % at PMTL's sizes; none if v was said."""
    rng = np.random.default_rng(3)
    noise = deviation * rng.standard_normal(200_000)
    expected = hit_probability(v, deviation)
    assert floating_point_hits(noise, v).mean() == pytest.approx(expected, abs=share_error(expected, 200_000))
    assert not floating_point_hits(v + noise, v).any()
    dim = min(4000, max(1, int(0.9 / v**2)))  # so that nothing is clipped
    for said in (0.0, v):  # exact integers give nothing away, in neither world
        released = Shipped().releases(np.full((1, dim), said), deviation, 200_000 // dim, rng)
        assert not floating_point_hits(released, v).any()
        assert released.mean() == pytest.approx(said, abs=5 * deviation / math.sqrt(released.size))


def test_more_coordinates_tell_more():
    shares = []
    for dim in (64, 1024):
        spread = SpreadMessage(Naive(), deviation=3.7, dim=dim)
        scores = spread.draw(False, 1_000, np.random.default_rng(0))
        expected = 1 - (1 - hit_probability(spread.each, 3.7)) ** dim
        assert (scores < 0).mean() == pytest.approx(expected, abs=share_error(expected, 1_000))
        shares.append(expected)
    assert shares[1] > 2 * shares[0]


# ------------------------------------------------------------------ the first version


@pytest.mark.parametrize(("length", "stands"), [(1.0, False), (3.0, True)])
def test_a_scale_read_from_data_tells_only_where_it_differs(length, stands):
    """A task as long as the others leaves the noise as loud as it is; only a longer one gives it away."""
    attack = LoudTask(ScaleFromData(0.1), length=length)
    worlds = [attack.draw(bool(w), 4_000, np.random.default_rng(w)) for w in (0, 1)]
    assert (lower_bound(*worlds, delta=0.0).epsilon > 1) == stands


# ------------------------------------------------------------------ the others


def test_clients_begin_where_they_should():
    """With a shared object four of five orders leave the task's weights with someone; else none does."""
    shared, own = (Clients(start, 1000.0) for start in (left_by_the_previous, as_broadcast))
    leaked = (shared.draw(True, 5_000, np.random.default_rng(0)) > 0).mean()
    assert leaked == pytest.approx(0.8, abs=share_error(0.8, 5_000))
    assert not shared.draw(False, 1_000, np.random.default_rng(1)).any()
    assert not own.draw(True, 1_000, np.random.default_rng(2)).any()


def test_a_task_is_in_as_many_nodes_as_the_tree_is_high():
    """The score has mean h and variance h s^2: the best test of one task in a tree is sqrt(h)/s-GDP."""
    sums, draws = PrefixSums(deviation=2.0, tasks=31), 20_000
    assert height(31) == 5
    for speaking in (False, True):
        scores = sums.draw(speaking, draws, np.random.default_rng(speaking))
        spread = math.sqrt(5) * 2.0
        assert scores.mean() == pytest.approx(5.0 * speaking, abs=SD * spread / math.sqrt(draws))
        assert scores.std() == pytest.approx(spread, rel=SD / math.sqrt(2 * draws))


def test_known_prices():
    """m = 20, q = 2, T = 100, z = 4, delta = 0.01: claimed 0.374, and 1.778 if participation is visible."""
    exhibit = next(e for e in EXHIBITS if e.name == "fixed-size-sampling")
    assert exhibit.claim.epsilon == pytest.approx(0.374, abs=5e-4)
    assert exhibit.repaired.claim.epsilon == pytest.approx(1.778, abs=5e-4)


# ------------------------------------------------------------------ the command and its page

PAGE = Path(__file__).parents[2] / "docs" / "found.md"


def table():
    """Return the cells of the page's table, exhibit by exhibit, without links and bold type."""
    rows = re.findall(
        r"^\| \[([\w-]+)\]\(#[\w-]+\) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    return {name: [cell.strip("* ").split(" (")[0] for cell in cells.split("|")] for name, cells in rows}


def test_the_page_shows_every_exhibit_and_its_claim():
    shown = table()
    assert list(shown) == NAMES
    for exhibit in EXHIBITS:
        delta, claimed, _, verdict, repaired, _, stands = shown[exhibit.name]
        assert float(delta) == exhibit.claim.delta
        assert claimed == f"{exhibit.claim.epsilon:.3g}"
        assert repaired == f"{exhibit.repaired.claim.epsilon:.3g}"
        assert (verdict, stands) == ("refuted", "stands")


@pytest.mark.slow
def test_the_page_agrees_with_the_command():
    document = json.loads(CliRunner().invoke(app, ["museum", "--json"]).stdout)
    prose, shown = PAGE.read_text(encoding="utf-8").split("[short-tree](#a-tree-of")[1], table()
    for entry in document["exhibits"]:
        for cell, trial in ((2, entry["broken"]), (5, entry["repaired"])):
            assert 0 <= trial["measured_epsilon"] - float(shown[entry["name"]][cell]) < 0.01
        if entry["name"] == "wishart-length":
            assert f"{entry['impossible']['measured']:.5f}" in prose
        elif entry["name"].startswith("wishart"):
            assert f"{entry['impossible']['measured']:.4f}" in prose
        elif entry["impossible"] is not None:
            assert f"{100 * entry['impossible']['measured']:.1f} %" in prose


def test_the_command_shows_one_exhibit():
    shown = CliRunner().invoke(app, ["museum", "reused-noise"])
    assert shown.exit_code == 0
    assert "re-seeded every round" in shown.stdout
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert next(row[-1] for row in rows if row[:1] == ["reused-noise"]) == "refuted"
    assert next(row[-1] for row in rows if row[:1] == ["repaired"]) == "stands"
    document = json.loads(CliRunner().invoke(app, ["museum", "reused-noise", "--json"]).stdout)
    (entry,) = document["exhibits"]
    assert entry["broken"]["refuted"]
    assert not entry["repaired"]["refuted"]
    assert entry["broken"]["measured_epsilon"] > entry["broken"]["claimed_epsilon"] == 1.0


def test_the_command_takes_a_seed():
    runs = [
        json.loads(CliRunner().invoke(app, ["museum", "sample-counts", "--json", "--seed", seed]).stdout)
        for seed in ("1", "2", "1")
    ]
    assert runs[0] == runs[2] != runs[1]
    assert runs[1]["exhibits"][0]["broken"]["seed"] == 2


@pytest.mark.parametrize("swap", ["broken", "repaired"])
def test_the_command_fails_if_an_exhibit_does_not_behave(swap, monkeypatch):
    """A claim that is true is not refuted; a repair that is none is."""
    exhibit = next(e for e in EXHIBITS if e.name == "reused-noise")
    if swap == "broken":
        changed = replace(exhibit, attack=exhibit.repaired.attack)
    else:
        changed = replace(exhibit, repaired=replace(exhibit.repaired, attack=exhibit.attack))
    monkeypatch.setattr("cloister.audit.museum.museum", lambda: (changed,))
    for arguments in (["museum"], ["museum", "--json"]):
        assert CliRunner().invoke(app, arguments).exit_code == 1


def test_the_command_refuses_an_unknown_exhibit():
    refused = CliRunner().invoke(app, ["museum", "perpetual-motion"])
    assert refused.exit_code == 1
    assert "wishart-release" in refused.stderr
