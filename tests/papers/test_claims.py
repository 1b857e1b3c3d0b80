"""Verdicts are functions of what was measured: turned round, they turn round; and pages have their parts."""

from __future__ import annotations

import json
from itertools import product
from types import ModuleType

import numpy as np
import pytest

from harness import catalog
from papers import pages
from papers.figure import Claim, Figure, Options, Outcome, Verdict, count, figures, judge, together
from papers.mpmtl import figure_4, figure_9, figure_12, tradeoff
from papers.pmtl import convergence, theorem_3, writers

FIGURES = figures()
KEPT = {name: catalog.record(name) for name in FIGURES if catalog.record(name)}


def test_a_claim_holds_everywhere_somewhere_or_nowhere():
    assert [judge(places, "").verdict for places in ([True] * 3, [True, False], [False])] == list(Verdict)
    assert count([True, False, True]) == Outcome(Verdict.PARTLY, "in 2 of 3 places")
    good, bad = Outcome(Verdict.YES, ""), Outcome(Verdict.NO, "")
    assert Claim("", "", good).verdict == Verdict.YES
    assert Claim("", "", good, bad).verdict == Verdict.PARTLY
    assert Claim("", "", None, bad).verdict == Verdict.NO
    assert together([Verdict.NO, Verdict.NO]) == Verdict.NO


def test_what_was_not_measured_is_not_judged():
    module = ModuleType("toy", "Toy.")
    module.claims = lambda data: [Claim("a", "", None), Claim("b", "", judge([True], "yes"))]
    assert [claim.says for claim in Figure("toy", "toy", module).claims({})] == ["b"]


@pytest.mark.parametrize("name", KEPT)
def test_every_page_says_what_it_does_not_cover(name):
    figure, data = FIGURES[name], KEPT[name]["data"]
    assert figure.claims(data)
    assert str(figure.module.NOT_COVERED).endswith(".")
    text = pages.page(figure, KEPT[name])
    assert text.index(f"({name}.svg)") < text.index("**Not covered:**") < text.index("[All numbers]")


def tradeoffs(percents, published, repaired, groups):
    """Errors at two ε of all methods of Figures 9 and 12, alone at 0.5 and together at 0.2."""
    found = []
    for method, error in {
        "ridge": 0.5,
        "lasso": 0.6,
        "trace norm": 0.2,
        "pooled": 0.4,
        **{
            f"{how} {kind}": error
            for kind in ("LR", "GS")
            for how, error in (("published", published), ("repaired", repaired))
        },
        **dict.fromkeys(("DP-MTRL", "quiet DP-MTRL", "DP-AGGR"), groups),
        **dict.fromkeys(("Joint", "Mean", "averaging"), 0.3),
    }.items():
        for epsilon in (1.0, 10.0) if method in tradeoff.PRIVATE else (0.0,):
            for seed, percent in product(range(2), percents):
                cell = {
                    "problem": "school",
                    "percent": percent,
                    "method": method,
                    "epsilon": epsilon,
                    "seed": seed,
                }
                found.append((cell, error))
    return found


def verdicts(claims: list[Claim], word: str) -> list[Verdict]:
    claim = next(claim for claim in claims if word in claim.says)
    return [one.verdict for one in (claim.published, claim.repaired) if one]


def test_figure_9_and_12_judge_the_methods_that_their_claims_are_about():
    for module, percents in ((figure_9, (30,)), (figure_12, (30, 90))):
        good, bad = tradeoffs(percents, 0.3, 0.4, groups=0.9), tradeoffs(percents, 0.3, 0.7, groups=0.6)
        found = {name: module.claims(module.summarise(each)) for name, each in (("good", good), ("bad", bad))}
        assert verdicts(found["good"], "ahead of DP-MTRL") == [Verdict.YES, Verdict.YES]
        assert verdicts(found["bad"], "ahead of DP-MTRL") == [Verdict.YES, Verdict.NO]
        assert verdicts(found["good"], "lie between") == [Verdict.YES, Verdict.YES]
        assert verdicts(found["bad"], "lie between") == [Verdict.YES, Verdict.NO]


def test_figure_4_holds_each_panel_against_its_own_losses():
    """The alone of (b) has the ridge of (b): with it learning alone is better than without."""
    setting = figure_4.PAPER.__class__(
        tasks=40, rows=8, dim=6, rank=1, rounds=4, warmup=5, clip=1.0, lr=1.5, convexity=0.1
    )
    found = figure_4.errors(setting, {"seed": 0, "panel": "reference"})
    assert found["alpha alone"] != found["exponent alone"]
    cell = {"seed": 0, "panel": "exponent", "x": 0.0, "accelerated": False}
    strong = figure_4.algorithm(setting, cell).strong
    assert strong == pytest.approx(setting.convexity / setting.lr)


def test_theorem_3_is_judged_as_printed_too():
    """Noise in increments that adds up over tasks makes the printed form fail, whatever the repaired does."""
    data = {}
    for m, T, said in [(200, T, s) for T in theorem_3.LENGTHS for s in SAIDS] + [
        (m, 30, s) for m in theorem_3.COUNTS for s in SAIDS
    ]:
        data[f"{m} tasks, {T} rounds, {said}, true"] = [1 / (m * T), 0.0]
        data[f"{m} tasks, {T} rounds, {said}, published"] = [float(m * T), 0.0]
    for rate, epsilon, method in product(convergence.RATES, convergence.BUDGETS, convergence.METHODS):
        data[convergence.share(rate, epsilon, method)] = [rate, 0.0]
    for word in ("with rounds", "number of tasks"):
        assert verdicts(theorem_3.claims(data), word) == [Verdict.NO, Verdict.YES]


SAIDS = ("ε = 1", "ε = 8", "no noise")


# Data that users bring --------------------------------------------------------------------------------------


@pytest.fixture
def lsoa(tmp_path):
    """Ninety people, eight features, of which one is missing at times, and five outcomes in a plane."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 8)).round(3)
    weights = rng.standard_normal((5, 2)) @ rng.standard_normal((2, 8))
    y = (X @ weights.T + rng.logistic(size=(90, 5)) > 0).astype(int)
    lines = [",".join([f"f{j}" for j in range(8)] + [f"target{k}" for k in range(5)])]
    for row, targets in zip(X, y, strict=True):
        cells = [str(value) for value in row] + [str(value) for value in targets]
        if rng.uniform() < 0.2:
            cells[3] = ""
        if rng.uniform() < 0.2:
            cells[9] = "NA"
        lines.append(",".join(cells))
    (tmp_path / "lsoa.csv").write_text("\n".join(lines))
    return Options(quick=True, seeds=1, data={"lsoa": tmp_path / "lsoa.csv"})


def test_lsoa_runs_from_the_public_table_with_all_methods(lsoa, monkeypatch):
    """Grids are cut to a setting each; every method of the claims is there, and every claim is judged."""
    monkeypatch.setattr(
        "papers.mpmtl.problems.Problem.validated", lambda self, grid, fit: fit(self, grid[-1])
    )
    cells = [cell for cell in figure_12.cells(lsoa) if cell["percent"] == 30]
    assert {"DP-MTRL", "DP-AGGR", "published GS", "repaired LR", "lasso", "MTRL"} <= {
        c["method"] for c in cells
    }
    data = figure_12.summarise([(cell, figure_12.measure(cell, lsoa)) for cell in cells])
    assert 0 < data["30"]["ridge"][0][0] < 0.6
    claims = figure_12.claims(json.loads(json.dumps(data)))
    assert len(claims) == 6
    assert figure_12.table(data)


def leaf(folder, users, rows, row):
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        names = [f"u{k}" for k in range(users)]
        made = {name: {"x": [], "y": []} for name in names}
        for name in names:
            for _ in range(rows):
                x, y = row()
                made[name]["x"].append(x)
                made[name]["y"].append(y)
        text = {"users": names, "num_samples": [rows] * users, "user_data": made}
        (folder / part / "all.json").write_text(json.dumps(text))


@pytest.mark.parametrize("name", [pytest.param("celeba", marks=pytest.mark.slow), "stackoverflow"])
def test_003_runs_on_leaf_data_of_a_users_own(name, tmp_path):
    """Faces of 16 by 16 with a light or dark smile; questions of words that are their tags."""
    rng, words, tags = np.random.default_rng(0), [f"w{k}" for k in range(9)], ["a", "b", "c"]

    def face():
        smile = int(rng.integers(2))
        return (rng.uniform(0, 60, (16, 16, 3)) + 180 * smile).round().tolist(), smile

    def question():
        tag = int(rng.integers(3))
        return " ".join(words[3 * tag : 3 * tag + 3]), tags[tag]

    leaf(tmp_path / "data", 6, 12, face if name == "celeba" else question)
    for what, entries in (("words", words), ("tags", tags)):
        (tmp_path / "data" / f"{what}.txt").write_text("\n".join(entries))
    options = Options(quick=True, seeds=1, data={name: tmp_path / "data"})
    for figure in ("pmtl-figure-2", "pmtl-figure-3", "pmtl-table-1"):
        module = FIGURES[figure].module
        cells = module.cells(options)
        assert {cell["data"] for cell in cells} == {name}
        if figure == "pmtl-figure-3":
            assert {cell["method"] for cell in cells} >= {"published fedavg", "increments"}
        data = module.summarise([(cell, module.measure(cell, options)) for cell in cells])
        assert writers.TITLES[name] in module.table(data)[0][0]
        assert module.claims(data)
