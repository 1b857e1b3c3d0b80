"""Type ids: complete, unique, for ever; and nobody's class is taken for the library's."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import cloister as cl
from cloister.core.document import (
    ESTIMATORS,
    FEATURES,
    TARGETS,
    TYPES,
    foreign_types,
    from_document,
    to_document,
    type_id,
)
from cloister.core.findings import EarlierPrior
from cloister.core.roster import Groups
from cloister.privacy.trust import SecureSum, SiloNoise, TrustedCurator
from cloister.privacy.unit import PersonUnit, RecordUnit, TaskUnit

torch = pytest.importorskip("torch", reason="needs the extra torch")

#: Every id that a released version has written. Add to it; never change or remove a line.
FROZEN = """
adam/1 adam-w/1
adaptive-fed-avg/1 ballot/1 blt/1 choose-at-home/1 classification/1 clustered-meta-sgd/1 convex/1
cosine/1 count-regression/1 cross-entropy/1
cross-validated-tuning/1 decomposed/1 descent/1 ditto/1 earlier-prior/1
entry-sparse/1 epochs/1 everyone/1 ewc/1 exact-solver/1 feature-relevance/1 fed-avg/1 fed-prox/1 fed-rep/1
fine-tuning/1 fixed-size/1 ftmrl/1 gaussian/1
geometric-budget/1 group-sparse/1 groups/1 in-order/1 increment/1 independent/1 joint/1 l2-laplace/1
least-squares/1
local-noise/1 local-only/1 locate-records/1 locate/1 logistic/1 low-rank/1 mean/1 mean-regularized/1
meta-sgd/1
model-averaging/1 module/2 nested/1 nesterov/1
no-noise/1 offset/1 one-pass/1 person-unit/1 record-unit/1 task-unit/1
ordered-classification/1 ordered-loss/1 personalized/1 plan/1 poisson/1 poisson-loss/1 position/1
power-budget/1 quadratic/1 regression/1 rescaled/1
scaffold/1 server-adam/1 server-adam-w/1 server-average/1 server-momentum/1
shared-prior/3 softmax/1 squared-norm/1 subspace/1 support/1 symmetrized-kl/1 task-sparse/1
secure-sum/1 silo-noise/1 toeplitz/1 tree/1 trusted-curator/1 warm-up/1 wishart/1
pooled-prior/1
""".split()  # noqa: SIM905
#: The same for the estimators that a run's folder may name.
FROZEN_ESTIMATORS = """
decomposed-classifier/1 decomposed-regressor/1 few-shot-classifier/1 group-sparse-classifier/1
group-sparse-regressor/1
low-rank-classifier/1 low-rank-regressor/1 mean-regularized-classifier/1 mean-regularized-regressor/1
meta-classifier/1 meta-regressor/1 several-outcomes/1 shared-prior-classifier/1 shared-prior-regressor/1
single-task-classifier/1 single-task-regressor/1
""".split()  # noqa: SIM905

#: What an algorithm, learner, mechanism or sampling works with, and no plan holds.
WORKING_VALUES = {
    "cloister.algorithms": {
        *("Look", "OwnRecords", "PartOfBoard", "Place", "Search"),
        *(
            f"{of}Constants"
            for of in ["Budget", "Covariance", "Group", "Histogram", "Mean", "Pooled", "Population"]
        ),
        *(f"{of}Constants" for of in ["Search", "Stacking", "Weight"]),
        *("Ask", "AskParts", "ColumnSearch", "ComparedRounds", "RoundsOf", "TargetSearch", "Walk"),  # stages
        *("HistogramSearch", "Looks"),
    },
    "cloister.learners": {
        *("NumberConstants", "ResidualConstants", "ScoreConstants", "TrustConstants"),
        *(
            "Candidate",
            "Free",
            "Home",
            "LaplaceFit",
            "Layout",
            "Loop",
            "NetworkFile",
            "NetworkRows",
            "OwnRidge",
            "OwnUnits",
            "Posterior",
            "FixedNetwork",
            "Precision",
            "RowKind",
            "PrincipalAxes",
            "PublicFeatures",
            "Question",
            "Split",
            "RidgeFit",
            "Rows",
            "SoftmaxPoint",
            "SoftmaxRows",
            "CountRows",
            "ModesByVariance",
            "OrderedRows",
            "Scored",
            "Slope",
            "Spectrum",
        ),
        *("Statistics", "Trainer", "Trial", "Units"),
    },
}
WORKING_VALUES["cloister.networks"] = {
    "Batched",
    "Bucket",
    "CardSampler",
    "Cut",
    "Fetched",
    "Footprint",
    "Precision",
    "RowSummary",
}
WORKING = set().union(*WORKING_VALUES.values())
#: Where else plans take values from.
HOMES = (cl.mechanisms, cl.sampling)


def resolved(place: str) -> object:
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)


def concrete(module: str) -> dict[str, type]:
    """Return the public dataclasses that a module defines and that can be made."""
    found = vars(importlib.import_module(module)).items()
    return {
        name: kind
        for name, kind in found
        if inspect.isclass(kind) and kind.__module__ == module and dataclasses.is_dataclass(kind)
        if not name.startswith("_") and not inspect.isabstract(kind)
    }


def parts() -> set[type]:
    """Return every dataclass that a plan can be made of."""
    kinds = {getattr(home, name) for home in HOMES for name in home.__all__}
    kinds |= {cl.Plan, Groups, EarlierPrior}
    kinds |= {SecureSum, SiloNoise, TrustedCurator, TaskUnit, RecordUnit, PersonUnit}
    kinds |= {cl.tune.Ballot}  # a vote's, beside the runs that it chooses among
    for package in WORKING_VALUES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if module.name.rpartition(".")[2] not in (
                "card_noise",
                "convolutions",
                "kernel_selection",
                "norm_kernel",
            ):  # need a graphics card's compiler
                kinds |= {kind for name, kind in concrete(module.name).items() if name not in WORKING}
    return {kind for kind in kinds if kind.__name__ != "Meta"}  # a base


def test_the_table_is_complete_and_each_id_stands_for_one_thing():
    kinds = {name: resolved(place) for name, place in TYPES.items()}
    assert {kind for kind in kinds.values() if inspect.isclass(kind)} == parts()
    assert len(set(kinds.values())) == len(TYPES)
    assert all(type_id(kind) == name for name, kind in kinds.items())


def test_ids_are_for_ever():
    assert set(TYPES) >= {f"cloister/{name}" for name in FROZEN}
    assert not {TARGETS, FEATURES} & set(TYPES)  # of the older form of plans, which is read too
    assert set(TYPES) == {f"cloister/{name}" for name in FROZEN}, "a new id: add it to FROZEN"
    assert set(ESTIMATORS) == {f"cloister/{name}" for name in FROZEN_ESTIMATORS}


def test_every_estimator_that_can_be_saved_has_an_id():
    kinds = {name: resolved(place) for name, place in ESTIMATORS.items()}
    assert all(type_id(kind) == name for name, kind in kinds.items())
    unsaved = {"FewShotModel", "PooledClassifier", "PooledRegressor"}
    assert {kind.__name__ for kind in kinds.values()} == set(cl.estimators.__all__) - unsaved


def network(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return cl.learners.Module(torch.nn.Linear(2, 2))


NET = network(0)
SOLVER = cl.learners.Descent(0.5, batch=3, steps=7, momentum=0.25, weight_decay=0.125, decay=0.5)
TUNED = cl.algorithms.FineTuning(SOLVER, cl.learners.Quadratic(0.25))
LOSS = cl.learners.Softmax(2, 3)
VALUES = [  # with as few defaults as possible: a field that is lost on the way would not be seen
    cl.algorithms.SharedPrior(
        cl.learners.Regression(2), cl.algorithms.GroupMeans(cl.algorithms.Mean(), Groups(("a", "b"), (2, 1)))
    ),
    cl.algorithms.SharedPrior(cl.learners.Regression(3), cl.algorithms.Joint(varying=(0, 2))),
    cl.algorithms.SharedPrior(cl.learners.CountRegression(2, 50.0, exposure=True, intercept=False)),
    cl.algorithms.SharedPrior(cl.learners.OrderedClassification(2, 4, intercept=False)),
    cl.algorithms.MeanRegularized(cl.learners.OrderedLoss(2, 4)),
    cl.algorithms.MeanRegularized(cl.learners.PoissonLoss(2, 50.0, exposure=True)),
    cl.algorithms.AdaptiveFedAvg(
        NET, SOLVER, clip=0.5, rounds=3, server=cl.algorithms.ServerAdam(0.5, 0.25, 0.5, 0.125), quantile=0.25
    ),
    cl.algorithms.ChooseAtHome(
        cl.algorithms.MeanRegularized(LOSS, lam=0.5),
        cl.learners.Classification(2, 3, class_weight=(1.0, 2.0, 0.5), alike=True),
        folds=3,
        variants=(cl.algorithms.MeanRegularized(LOSS, lam=2.0),),
        asks=0.25,
        by_rows=True,
    ),
    cl.algorithms.ClusteredMetaSGD(
        cl.learners.Convex(LOSS),
        cl.learners.ExactSolver(7),
        lam=0.5,
        clip=0.5,
        rounds=20,
        radius=2.0,
        models=3,
    ),
    cl.algorithms.Decomposed(cl.algorithms.LowRank(LOSS, lam=0.5, rounds=3), cl.algorithms.EntrySparse(0.25)),
    cl.algorithms.Decomposed(
        cl.algorithms.GroupSparse(LOSS, lam=0.5, rounds=3), cl.algorithms.TaskSparse(0.25)
    ),
    cl.algorithms.Decomposed(
        cl.algorithms.LowRank(LOSS, rounds=3, allocation=cl.algorithms.PowerBudget(0.5)),
        cl.algorithms.SquaredNorm(0.25),
    ),
    cl.algorithms.LowRank(
        cl.learners.Logistic(2), rounds=3, accelerated=True, allocation=cl.algorithms.GeometricBudget(0.5)
    ),
    cl.algorithms.Ditto(
        NET, SOLVER, clip=0.5, rounds=3, server=cl.algorithms.ServerMomentum(0.5, 0.25), lam=0.25
    ),
    cl.algorithms.FedRep(
        cl.learners.Module(NET.net, personal=("bias",)), SOLVER, clip=0.5, rounds=3, head=TUNED.solver
    ),
    cl.algorithms.FedAvg(
        NET,
        SOLVER,
        clip=0.5,
        rounds=3,
        finetune=cl.algorithms.CrossValidatedTuning(
            (TUNED, cl.algorithms.FineTuning(SOLVER)), checks=3, folds=4
        ),
    ),
    cl.algorithms.Scaffold(NET, cl.learners.Descent(0.5, steps=7), clip=0.5, rounds=3, share=0.5),
    cl.algorithms.FedProx(NET, SOLVER, clip=0.5, rounds=3, server=cl.algorithms.ServerAverage(0.5), lam=0.25),
    cl.algorithms.FTMRL(
        cl.learners.Convex(cl.learners.LeastSquares(2)),
        cl.learners.Descent(0.5, steps=7),
        lam=0.5,
        clip=0.5,
        rounds=3,
        tail=0.5,
        lam_meta=0.25,
    ),
    cl.algorithms.MetaSGD(
        NET,
        SOLVER,
        lam=0.5,
        clip=0.5,
        rounds=3,
        finetune=cl.algorithms.FineTuning(SOLVER, cl.learners.EWC(0.5)),
    ),
    cl.algorithms.Independent(cl.learners.Regression(2, intercept=False)),
    cl.algorithms.SharedPrior(
        cl.learners.Regression(3), locate=cl.algorithms.Locate((1, 2), 0.5, reach=2.0, targets=False)
    ),
    cl.algorithms.PooledPrior(
        cl.learners.Regression(3), cl.algorithms.LocateRecords((1, 2), 0.5, reach=2.0, indicators=(2,))
    ),
    cl.algorithms.Rescaled(
        cl.algorithms.MeanRegularized(cl.learners.LeastSquares(3)), cl.algorithms.Locate((1, 2), 0.5)
    ),
    cl.algorithms.LocalNoise(cl.algorithms.MeanRegularized(cl.learners.LeastSquares(2), rounds=3), 0.5, 0.25),
    cl.algorithms.LocalNoise(
        cl.algorithms.MeanRegularized(cl.learners.LeastSquares(2), rounds=3),
        0.5,
        0.25,
        cl.algorithms.PowerBudget(0.5),
    ),
    cl.algorithms.LocalOnly(NET, SOLVER),
    cl.algorithms.LocalOnly(
        NET, cl.learners.Adam(0.5, 3, 2, betas=(0.5, 0.25), eps=0.125, weight_decay=0.5, max_norm=2.0)
    ),
    cl.algorithms.LocalOnly(
        NET,
        cl.learners.AdamW(
            0.5,
            steps=7,
            over_rounds=cl.learners.Cosine(9, warm_up=2, floor=0.25),
            over_steps=cl.learners.WarmUp(3),
        ),
    ),
    cl.algorithms.FedAvg(
        NET, SOLVER, rounds=3, server=cl.algorithms.ServerAdamW(0.5, 0.25, 0.5, 0.125, 0.75, to_start=True)
    ),
    cl.algorithms.LocalOnly(NET, cl.learners.Nesterov(0.5, momentum=0.25, weight_decay=0.125)),
    cl.algorithms.ModelAveraging(cl.learners.Logistic(2), lam=0.5, clip=0.5, steps=7),
    *(
        cl.algorithms.Personalized(
            NET,
            SOLVER,
            clip=0.5,
            rounds=3,
            lam=0.25,
            message=says,
            finetune=cl.algorithms.FineTuning(SOLVER, cl.learners.SymmetrizedKL(0.5)),
        )
        for says in (cl.algorithms.Offset(), cl.algorithms.Increment(0.25), cl.algorithms.Position())
    ),
    *(
        cl.algorithms.SharedPrior(cl.learners.Regression(2), structure)
        for structure in (
            cl.algorithms.Joint(),
            cl.algorithms.Joint(
                EarlierPrior(
                    (0.5, 1.5), 0.25, (1.0,) * 4, 0.5, ("a",), ((0.5, 2.0),), 0.5, 2.0, 1, "b", ("c",)
                )
            ),
            cl.algorithms.Mean(),
            cl.algorithms.FeatureRelevance(),
            cl.algorithms.Subspace(),
            cl.algorithms.Support(),
        )
    ),
    *(cl.Trust.secure_sum(1, 2), cl.Trust.silo()),
    *(cl.Unit.record(10_000), cl.Unit.person(10_000, 3)),
    *(
        cl.mechanisms.Gaussian(0.5, exact=False),
        cl.mechanisms.NoNoise(),
        cl.mechanisms.L2Laplace(0.5),
        cl.mechanisms.Wishart(9.0, 0.5),
    ),
    *(
        cl.mechanisms.Toeplitz(0.5, exact=False, bands=3),
        cl.mechanisms.Tree(0.5, honaker=True),
        cl.mechanisms.BLT(0.5, buffers=2),
    ),
    *(
        cl.sampling.Everyone(),
        cl.sampling.Poisson(0.25, hidden=True),
        cl.sampling.FixedSize(7),
        cl.sampling.InOrder(),
        cl.sampling.OnePass(),
        cl.sampling.Epochs(3),
    ),
    cl.Plan(
        cl.algorithms.Independent(cl.learners.Regression(2)),
        cl.mechanisms.Gaussian(0.5),
        cl.sampling.Poisson(0.5),
        n_tasks=9,
        relation="zero_out",
        delta=0.05,
        caveats=("a",),
    ),
    cl.tune.Ballot(3),
]


def test_every_value_comes_back_from_a_document():
    named = set()

    def note(document):
        if isinstance(document, dict):
            named.add(document.get("type"))
            named.add(document.get("loss") if document.get("type") == "cloister/module/2" else None)
            document = list(document.values())
        for item in document if isinstance(document, list) else ():
            note(item)

    for value in VALUES:
        note(to_document(value))
        assert from_document(to_document(value), foreign_types(value)) == value
    assert named - {None} == set(TYPES)


# ------------------------------------------------------------------ other people's classes


@dataclass(frozen=True)
class Gaussian:
    """Has the name of a library class, and that is all."""

    mu: float | None = None
    exact: bool = True


@dataclass(frozen=True)
class Pretender(cl.algorithms.MeanRegularized):
    """A subclass that speaks otherwise."""

    type_id = "ward-7/pretender/2"


@dataclass(frozen=True)
class Heir(Pretender):
    """Its parent's id is not its own."""


def test_a_class_that_merely_has_a_library_name_is_not_it():
    assert type_id(Gaussian) == f"{__name__}:Gaussian/1"
    forged = dataclasses.make_dataclass("Gaussian", ["mu"], frozen=True)
    forged.__module__ = cl.mechanisms.Gaussian.__module__
    assert type_id(forged) != type_id(cl.mechanisms.Gaussian) == "cloister/gaussian/1"
    for kind in (Gaussian, forged):
        document = to_document(kind(1.0))
        with pytest.raises(
            cl.errors.PlanError, match=r"not one of cloister's own .*types=\[\.\.\.\].*--types module:Class"
        ):
            from_document(document)
        assert type(from_document(document, [kind])) is kind
    assert (
        type(from_document(to_document(cl.mechanisms.Gaussian(1.0)), [Gaussian, forged]))
        is cl.mechanisms.Gaussian
    )


def test_a_class_says_its_own_id_and_does_not_inherit_one():
    loss = cl.learners.LeastSquares(2)
    assert [type_id(kind) for kind in (Pretender, Heir)] == ["ward-7/pretender/2", f"{__name__}:Heir/1"]
    plans = [
        cl.Plan(kind(loss), cl.mechanisms.Gaussian(1.0), n_tasks=9)
        for kind in (cl.algorithms.MeanRegularized, Pretender, Heir)
    ]
    assert len({plan.fingerprint for plan in plans}) == 3
    for plan in plans[1:]:
        assert cl.Plan.from_toml(plan.to_toml(), types=[Heir, Pretender]) == plan
        with pytest.raises(cl.errors.PlanError, match="hand it over"):
            cl.Plan.from_toml(plan.to_toml())


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ("cloister/no-noise/1", "Ids that begin with cloister/ are the library's"),
        ("cloister/mine/1", "Ids that begin with cloister/ are the library's"),
        ("mine", "must read like 'owner/name/1'"),
        ("a/b/0", "must read like 'owner/name/1'"),
        ("a b/c/1", "must read like 'owner/name/1'"),
        (7, "must read like 'owner/name/1'"),
    ],
)
def test_an_id_of_ones_own_that_is_refused(own, sentence):
    kind = dataclass(frozen=True)(type("Mine", (), {"type_id": own}))
    for use in (lambda: to_document(kind()), lambda: from_document({"type": "x"}, [kind])):
        with pytest.raises(cl.errors.PlanError, match=sentence):
            use()


def test_what_cannot_be_handed_over():
    for wrong in (Path, np, 7):
        with pytest.raises(
            cl.errors.PlanError, match=r"must be a dataclass, or a value of one.* pass Module\(net\), not"
        ):
            from_document({"type": "x"}, [wrong])
    twin = dataclasses.make_dataclass("Twin", [], namespace={"type_id": "ward-7/pretender/2"})
    with pytest.raises(
        cl.errors.PlanError, match="Two types that are handed over have the id 'ward-7/pretender/2'"
    ):
        from_document({"type": "x"}, [Pretender, twin])
    assert from_document(
        to_document(Pretender(LOSS)), [Pretender, Pretender, cl.algorithms.MeanRegularized]
    ) == Pretender(LOSS)


def test_a_script_has_the_name_it_is_imported_by(monkeypatch):
    kind = dataclasses.make_dataclass("Mine", [])
    kind.__module__ = "__main__"
    for spec, file, name in (
        (None, "/home/me/noisy.py", "noisy"),
        (importlib.machinery.ModuleSpec("ward.noisy", None), "x.py", "ward.noisy"),
        (None, None, "__main__"),
    ):
        main = type(sys)("__main__")
        main.__spec__, main.__file__ = spec, file
        monkeypatch.setitem(sys.modules, "__main__", main)
        assert type_id(kind) == f"{name}:Mine/1"


def test_numbers_of_fields_are_checked_in_anyones_class():
    kind = dataclasses.make_dataclass("Mine", [("sizes", tuple[int, ...] | None, None), ("rate", float, 0.5)])
    document = to_document(kind((1, 2), np.float64(1)))
    assert document == {"type": type_id(kind), "sizes": [1, 2], "rate": 1.0}
    assert from_document(document, [kind]) == kind((1, 2), 1.0)
    for wrong in ({"sizes": [1, 2.5]}, {"sizes": 3}, {"sizes": [True]}, {"rate": "0.5"}, {"rate": [1.0]}):
        with pytest.raises(cl.errors.PlanError, match=r"(sizes|rate) of .*Mine/1 must be a "):
            from_document(document | wrong, [kind])
    with pytest.raises(
        cl.errors.PlanError, match=r"must be a list, each a whole number or left out\. Got tuple"
    ):
        to_document(kind((0.5,)))


def test_a_network_that_is_not_the_described_one_is_not_taken_for_it():
    """Same class and shape, other weights: a plan read with it would claim another run's fingerprint."""
    plan = cl.Plan(
        cl.algorithms.FedAvg(NET, SOLVER, clip=0.5, rounds=3), cl.mechanisms.Gaussian(1.0), n_tasks=9
    )
    other = network(1)
    assert cl.Plan.from_toml(plan.to_toml(), types=[other, NET]).fingerprint == plan.fingerprint
    with pytest.raises(cl.errors.PlanError, match="Hand over the very same"):
        cl.Plan.from_toml(plan.to_toml(), types=[other])
