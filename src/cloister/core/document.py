"""Frozen dataclasses as plain documents (for TOML and JSON) and back, by type ids that outlive class names.

A type id has three parts: whose it is, what it is, and a number that goes up when its fields or their meaning
change. The library's own ids are the tables `TYPES` and `ESTIMATORS`: they do not follow a class that is
renamed or moved, and are never used for another one. Anyone else's class has an id of its own (see
`type_id`), and a document that names it is read only if the reader hands the class over. A document can
therefore make nothing be imported but what the tables list.

In the older form of plans a search was an algorithm around another one. Both forms are read. A fingerprint is
that of the older one where there is one, so that boards, journals and ledgers of before go with plans that
are written now.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import tomli_w

from cloister.core.errors import InputError, MissingExtraError, MissingTypeError, PlanError

TARGETS, FEATURES = "cloister/located/2", "cloister/located-features/2"
LOCATE, RESCALED = "cloister/locate/1", "cloister/rescaled/1"
#: Algorithms that search by themselves; around all others there is `Rescaled`.
SEARCHING = ("cloister/shared-prior/3", "cloister/choose-at-home/1")
#: What a document of the older form leaves out has this value.
REACH = 2 * 3**0.5


def fingerprint(document: Mapping[str, Any]) -> str:
    """Return a hash of a plan's document, of either form."""
    return hashlib.sha256(tomli_w.dumps(nested(flattened(document))).encode()).hexdigest()


def fingerprint_of_file(path: Path) -> str:
    """Return the hash of the plan in a file, without building it; empty if there is none."""
    try:
        return fingerprint(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, PlanError):
        return ""


def nested(document: Any) -> Any:
    """Return a document in the older form.

    Examples
    --------
    >>> search = {"type": LOCATE, "columns": [], "reach": REACH, "targets": True}
    >>> nested({"type": "cloister/shared-prior/3", "locate": search})
    {'type': 'cloister/located/2', 'algorithm': {'type': 'cloister/shared-prior/3'}}
    """
    if isinstance(document, list):
        return [nested(item) for item in document]
    if not isinstance(document, Mapping):
        return document
    found = {name: nested(item) for name, item in document.items()}
    search = found.get("locate")
    if found.get("type") not in (*SEARCHING, RESCALED) or not isinstance(search, dict):
        return found
    del found["locate"]
    inside = found["algorithm"] if found["type"] == RESCALED else found
    constant = {"intercept": search["intercept"]} if "intercept" in search else {}
    if search["columns"]:
        columns = {"columns": search["columns"]} | constant | {"reach": search["reach"]}
        inside = {"type": FEATURES, "algorithm": inside} | columns
    return {"type": TARGETS, "algorithm": inside} | constant if search["targets"] else inside


def flattened(document: Any) -> Any:
    """Return a document without searches around algorithms, which have them in a field.

    Examples
    --------
    >>> flattened({"type": TARGETS, "algorithm": {"type": "cloister/shared-prior/3"}})["locate"]["targets"]
    True
    """
    if isinstance(document, list):
        return [flattened(item) for item in document]
    if not isinstance(document, Mapping):
        return document
    if document.get("type") not in (TARGETS, FEATURES):
        return {name: flattened(item) for name, item in document.items()}
    search: dict[str, Any] = {"type": LOCATE, "columns": [], "reach": REACH, "targets": False}
    inside: Any = document
    for kind in (TARGETS, FEATURES):  # targets are always searched for first
        if not isinstance(inside, Mapping) or inside.get("type") != kind:
            continue
        given = {name: item for name, item in inside.items() if name not in ("type", "algorithm")}
        if search["targets"] and given.get("intercept") != search.get("intercept"):
            raise PlanError(f"{TARGETS} and {FEATURES} must have the same intercept in a plan file.")
        search |= given
        search["targets"] = search["targets"] or kind == TARGETS
        inside = inside.get("algorithm")
    inside = flattened(inside)
    if isinstance(inside, dict) and inside.get("type") in SEARCHING and "locate" not in inside:
        return inside | {"locate": search}
    return {"type": RESCALED, "algorithm": inside, "locate": search}


#: What a file may name without anybody's help. An id is never changed, nor given to something else.
TYPES = {
    "cloister/plan/1": "cloister.plan.plan:Plan",
    # algorithms
    "cloister/adaptive-fed-avg/1": "cloister.algorithms.adaptive:AdaptiveFedAvg",
    "cloister/ballot/1": "cloister.app.choice:Ballot",
    "cloister/choose-at-home/1": "cloister.algorithms.stacking:ChooseAtHome",
    "cloister/clustered-meta-sgd/1": "cloister.algorithms.mixture:ClusteredMetaSGD",
    "cloister/decomposed/1": "cloister.algorithms.decomposed:Decomposed",
    "cloister/ditto/1": "cloister.algorithms.federated:Ditto",
    "cloister/fed-avg/1": "cloister.algorithms.federated:FedAvg",
    "cloister/fed-prox/1": "cloister.algorithms.federated:FedProx",
    "cloister/fed-rep/1": "cloister.algorithms.federated:FedRep",
    "cloister/ftmrl/1": "cloister.algorithms.meta:FTMRL",
    "cloister/group-sparse/1": "cloister.algorithms.covariance:GroupSparse",
    "cloister/independent/1": "cloister.algorithms.bases:Independent",
    "cloister/local-noise/1": "cloister.algorithms.local_noise:LocalNoise",
    "cloister/local-only/1": "cloister.algorithms.federated:LocalOnly",
    "cloister/low-rank/1": "cloister.algorithms.covariance:LowRank",
    "cloister/locate/1": "cloister.algorithms.locate:Locate",
    "cloister/locate-records/1": "cloister.algorithms.histograms:LocateRecords",
    "cloister/pooled-prior/1": "cloister.algorithms.prior.pooled_prior:PooledPrior",
    "cloister/mean-regularized/1": "cloister.algorithms.mean_regularized:MeanRegularized",
    "cloister/meta-sgd/1": "cloister.algorithms.meta:MetaSGD",
    "cloister/model-averaging/1": "cloister.algorithms.mean_regularized:ModelAveraging",
    "cloister/personalized/1": "cloister.algorithms.federated:Personalized",
    "cloister/rescaled/1": "cloister.algorithms.staged:Rescaled",
    "cloister/scaffold/1": "cloister.algorithms.scaffold:Scaffold",
    "cloister/shared-prior/3": "cloister.algorithms.prior.shared_prior:SharedPrior",
    # parts of algorithms
    "cloister/cross-validated-tuning/1": "cloister.algorithms.finetuning:CrossValidatedTuning",
    "cloister/earlier-prior/1": "cloister.core.findings:EarlierPrior",
    "cloister/entry-sparse/1": "cloister.algorithms.decomposed:EntrySparse",
    "cloister/feature-relevance/1": "cloister.algorithms.prior.relevance:FeatureRelevance",
    "cloister/fine-tuning/1": "cloister.algorithms.finetuning:FineTuning",
    "cloister/geometric-budget/1": "cloister.algorithms.covariance:GeometricBudget",
    "cloister/groups/1": "cloister.core.roster:Groups",
    "cloister/increment/1": "cloister.algorithms.federated:Increment",
    "cloister/joint/1": "cloister.algorithms.prior.mean:Joint",
    "cloister/mean/1": "cloister.algorithms.prior.mean:Mean",
    "cloister/nested/1": "cloister.algorithms.prior.groups:GroupMeans",
    "cloister/offset/1": "cloister.algorithms.federated:Offset",
    "cloister/position/1": "cloister.algorithms.federated:Position",
    "cloister/power-budget/1": "cloister.algorithms.covariance:PowerBudget",
    "cloister/server-adam/1": "cloister.algorithms.server:ServerAdam",
    "cloister/server-adam-w/1": "cloister.algorithms.server:ServerAdamW",
    "cloister/server-average/1": "cloister.algorithms.server:ServerAverage",
    "cloister/server-momentum/1": "cloister.algorithms.server:ServerMomentum",
    "cloister/squared-norm/1": "cloister.algorithms.decomposed:SquaredNorm",
    "cloister/subspace/1": "cloister.algorithms.prior.directions:Subspace",
    "cloister/support/1": "cloister.algorithms.prior.directions:Support",
    "cloister/task-sparse/1": "cloister.algorithms.decomposed:TaskSparse",
    # learners, their losses, solvers and penalties
    "cloister/adam/1": "cloister.learners.descent:Adam",
    "cloister/adam-w/1": "cloister.learners.descent:AdamW",
    "cloister/count-regression/1": "cloister.learners.linear.counts:CountRegression",
    "cloister/ordered-classification/1": "cloister.learners.linear.ordered:OrderedClassification",
    "cloister/ordered-loss/1": "cloister.learners.linear.ordered:OrderedLoss",
    "cloister/poisson-loss/1": "cloister.learners.linear.losses:PoissonLoss",
    "cloister/classification/1": "cloister.learners.linear.classification:Classification",
    "cloister/convex/1": "cloister.learners.linear.convex:Convex",
    "cloister/cosine/1": "cloister.learners.descent:Cosine",
    "cloister/cross-entropy/1": "cloister.networks.network_losses:cross_entropy",
    "cloister/descent/1": "cloister.learners.descent:Descent",
    "cloister/ewc/1": "cloister.networks.network_penalties:EWC",
    "cloister/exact-solver/1": "cloister.learners.descent:ExactSolver",
    "cloister/least-squares/1": "cloister.learners.linear.losses:LeastSquares",
    "cloister/logistic/1": "cloister.learners.linear.losses:Logistic",
    "cloister/module/2": "cloister.networks.module:Module",
    "cloister/nesterov/1": "cloister.learners.descent:Nesterov",
    "cloister/quadratic/1": "cloister.learners.penalties:Quadratic",
    "cloister/regression/1": "cloister.learners.linear.regression:Regression",
    "cloister/softmax/1": "cloister.learners.linear.losses:Softmax",
    "cloister/symmetrized-kl/1": "cloister.networks.network_penalties:SymmetrizedKL",
    "cloister/warm-up/1": "cloister.learners.descent:WarmUp",
    # mechanisms and samplings
    "cloister/blt/1": "cloister.privacy.prefix:BLT",
    "cloister/epochs/1": "cloister.privacy.sampling:Epochs",
    "cloister/everyone/1": "cloister.privacy.sampling:Everyone",
    "cloister/fixed-size/1": "cloister.privacy.sampling:FixedSize",
    "cloister/gaussian/1": "cloister.privacy.mechanisms:Gaussian",
    "cloister/in-order/1": "cloister.privacy.sampling:InOrder",
    "cloister/l2-laplace/1": "cloister.privacy.laplace:L2Laplace",
    "cloister/no-noise/1": "cloister.privacy.mechanisms:NoNoise",
    "cloister/one-pass/1": "cloister.privacy.sampling:OnePass",
    "cloister/person-unit/1": "cloister.privacy.unit:PersonUnit",
    "cloister/poisson/1": "cloister.privacy.sampling:Poisson",
    "cloister/record-unit/1": "cloister.privacy.unit:RecordUnit",
    "cloister/secure-sum/1": "cloister.privacy.trust:SecureSum",
    "cloister/silo-noise/1": "cloister.privacy.trust:SiloNoise",
    "cloister/trusted-curator/1": "cloister.privacy.trust:TrustedCurator",
    "cloister/task-unit/1": "cloister.privacy.unit:TaskUnit",
    "cloister/toeplitz/1": "cloister.privacy.prefix:Toeplitz",
    "cloister/tree/1": "cloister.privacy.prefix:Tree",
    "cloister/wishart/1": "cloister.privacy.wishart:Wishart",
}
#: What the folder of a run may name as the estimator that made it.
ESTIMATORS = {
    "cloister/decomposed-classifier/1": "cloister.estimators.linear:DecomposedClassifier",
    "cloister/decomposed-regressor/1": "cloister.estimators.linear:DecomposedRegressor",
    "cloister/few-shot-classifier/1": "cloister.estimators.few_shot:FewShotClassifier",
    "cloister/group-sparse-classifier/1": "cloister.estimators.linear:GroupSparseClassifier",
    "cloister/group-sparse-regressor/1": "cloister.estimators.linear:GroupSparseRegressor",
    "cloister/low-rank-classifier/1": "cloister.estimators.linear:LowRankClassifier",
    "cloister/low-rank-regressor/1": "cloister.estimators.linear:LowRankRegressor",
    "cloister/mean-regularized-classifier/1": "cloister.estimators.linear:MeanRegularizedClassifier",
    "cloister/mean-regularized-regressor/1": "cloister.estimators.linear:MeanRegularizedRegressor",
    "cloister/meta-classifier/1": "cloister.estimators.meta:MetaClassifier",
    "cloister/meta-regressor/1": "cloister.estimators.meta:MetaRegressor",
    "cloister/several-outcomes/1": "cloister.estimators.several:SeveralOutcomes",
    "cloister/shared-prior-classifier/1": "cloister.estimators.prior:SharedPriorClassifier",
    "cloister/shared-prior-regressor/1": "cloister.estimators.prior:SharedPriorRegressor",
    "cloister/single-task-classifier/1": "cloister.estimators.baselines:SingleTaskClassifier",
    "cloister/single-task-regressor/1": "cloister.estimators.baselines:SingleTaskRegressor",
}
_ID_OF = {place: name for name, place in (TYPES | ESTIMATORS).items()}

#: A field's annotation that is checked: numbers, words, and tuples of them, or None.
_SCALAR = r"(?:bool|int|float|str|None)"
_CHECKED = re.compile(
    rf"(?:{_SCALAR}|tuple\[{_SCALAR}, \.\.\.\])(?: \| (?:{_SCALAR}|tuple\[{_SCALAR}, \.\.\.\]))*"
)
_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a word",
    "None": "left out",
}


@runtime_checkable
class SelfDescribed(Protocol):
    """A value that a file cannot hold, and describes so that it is told from others (a network)."""

    def file_description(self) -> dict[str, Any]:
        """Return numbers and words that stand for this value and no other."""


def check_format(found: object, known: str, where: str | os.PathLike[str]) -> None:
    """Refuse a file of a format that this version does not read; one without a format is of the first.

    Examples
    --------
    >>> check_format("cloister codebook 7", "cloister codebook 1", "book.toml")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    cloister.errors.InputError: book.toml says format = 'cloister codebook 7', and this version of...
    """
    if found not in (None, known):
        raise InputError(
            f"{where} says format = {found!r}, and this version of cloister reads {known!r}. "
            "Use the version that wrote it."
        )


def type_id(kind: Any) -> str:
    """Return the id under which files name a class (or a function).

    One's own class declares it, `type_id = "ward-7/noisy-average/1"`, or goes by its module, name and
    number 1, "noisy:NoisyAverage/1". A subclass does not inherit its parent's. A class that merely has a
    library class's name, or claims to live where it lives, does not get its id.

    Examples
    --------
    >>> from cloister.plan.plan import Plan
    >>> type_id(Plan), type_id(Path)
    ('cloister/plan/1', 'pathlib:Path/1')
    """
    place = f"{kind.__module__}:{kind.__qualname__}"
    if place in _ID_OF and getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind:
        return _ID_OF[place]
    own = vars(kind).get("type_id")
    if own is None:
        return f"{_module_name(kind)}:{kind.__qualname__}/1"
    if not isinstance(own, str) or not re.fullmatch(r"[\w.:-]+(/[\w.:-]+)*/[1-9]\d*", own):
        raise PlanError(f"type_id must read like 'owner/name/1'. Got {own!r} in {kind.__qualname__}.")
    if own.split("/")[0] == "cloister":
        raise PlanError(f"Ids that begin with cloister/ are the library's. {kind.__qualname__} has {own!r}.")
    return own


def _module_name(kind: Any) -> str:
    """Return where a class lives; for a script that is being run, the name it has when it is imported."""
    if kind.__module__ != "__main__":
        return str(kind.__module__)
    main = vars(sys.modules["__main__"])
    spec, file = main.get("__spec__"), main.get("__file__")
    return spec.name if spec is not None else Path(file).stem if file else "__main__"


def to_document(value: Any) -> Any:
    """Turn a tree of frozen dataclasses, tuples, enums and numbers into dicts, lists and numbers."""
    if isinstance(value, type):
        raise PlanError(f"A plan is made of values, not of classes. Got the class {value.__name__}: call it.")
    if isinstance(value, SelfDescribed):
        return {"type": type_id(type(value))} | value.file_description()
    if dataclasses.is_dataclass(value):
        name = type_id(type(value))
        fields = [(f, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init]
        return {"type": name} | {
            f.name: to_document(_fitted(name, f, own)) for f, own in fields if own is not None
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [to_document(item) for item in value]
    if isinstance(value, (bool, int, float, str)):
        return value
    raise PlanError(f"A plan is made of numbers, words and frozen dataclasses. Got {type(value).__name__}.")


def from_document(document: Any, types: Iterable[Any] = ()) -> Any:
    """Build the value a document describes, from the library's types and those that are handed over.

    Parameters
    ----------
    document : dict, list, number or str
        What `to_document` made.
    types : iterable of classes and values
        Classes that the document may name beside the library's; and values that it describes but cannot
        hold (a `Module`): one whose description is the same is used.
    """
    classes: dict[str, type] = {}
    values: list[Any] = []
    for item in types:
        if not dataclasses.is_dataclass(item):
            kind = type(item).__name__
            raise PlanError(
                f"What is handed over must be a dataclass, or a value of one. Got {kind}. "
                "Of a network pass Module(net), not the bare net."
            )
        if not isinstance(item, type):
            values.append(item)
        elif classes.setdefault(type_id(item), item) is not item:
            raise PlanError(f"Two types that are handed over have the id {type_id(item)!r}. Number one anew.")
    return _build(document, classes, [(to_document(value), value) for value in values])


def foreign_types(value: Any) -> list[Any]:
    """Return what must be handed over to read a value back: classes that are not the library's, networks.

    Examples
    --------
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> foreign_types(MeanRegularized(LeastSquares(2)))
    []
    """
    if isinstance(value, SelfDescribed):
        return [value]
    if isinstance(value, (tuple, list)):
        return [kind for item in value for kind in foreign_types(item)]
    if not dataclasses.is_dataclass(value):
        return []
    parts = [getattr(value, f.name) for f in dataclasses.fields(value) if f.init]
    own = [] if type_id(type(value)) in TYPES else [type(value)]
    return own + foreign_types(parts)


def _build(document: Any, classes: Mapping[str, type], values: list[tuple[Any, Any]]) -> Any:
    if isinstance(document, list):
        return tuple(_build(item, classes, values) for item in document)
    if isinstance(document, (bool, int, float, str)):
        return document
    if not isinstance(document, dict):
        raise PlanError(f"A plan file holds numbers, words and types. Got {type(document).__name__}.")
    for described, value in values:
        if described == document:
            return value
    name = str(document.get("type"))
    kind = _class(name, classes)
    if isinstance(kind, type) and issubclass(kind, SelfDescribed):
        raise MissingTypeError(
            f"A file cannot hold a {kind.__name__}, and none that was handed over is the one it describes. "
            "Hand over the very same: types=[...] in Python, --types module:name on the command line."
        )
    given = {key: _build(value, classes, values) for key, value in document.items() if key != "type"}
    try:
        known = {f.name: f for f in dataclasses.fields(kind)}
        return kind(**{key: _fitted(name, known[key], v) if key in known else v for key, v in given.items()})
    except TypeError as error:
        raise PlanError(f"{name} cannot be built from this file: {error}.") from None


def library_class(name: str, table: Mapping[str, str] = TYPES) -> Any:
    """Return the library's own class of an id; refuse an id that its table does not list."""
    if name not in table:
        known = [other for other in table if name.rpartition("/")[0] == other.rpartition("/")[0]]
        also = f" It reads {known[0]}." if known else ""
        raise PlanError(
            f"This version of cloister does not know the type {name!r}.{also} Use the one that wrote it."
        )
    module, attribute = table[name].split(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("torch", "networks", name) from error


def _class(name: str, classes: Mapping[str, type]) -> Any:
    """Return the class of an id: the library's own, or one that was handed over; or say what to do."""
    if name in classes:
        return classes[name]
    if name.startswith("cloister/"):
        return library_class(name)
    if "/" not in name:
        raise PlanError(
            f"type = {name!r} is no id (such as 'cloister/gaussian/1'). Files of cloister 0.1 name types so: "
            "read them with that version."
        )
    raise MissingTypeError(
        f"{name!r} is not one of cloister's own types. If you trust its class, hand it over: types=[...] in "
        "Python, --types module:Class on the command line."
    )


def _fitted(name: str, field: dataclasses.Field[Any], value: Any) -> Any:
    """Return a field's value if it is what the field's annotation says; a whole number is a number too."""
    kind = field.type
    text = kind if isinstance(kind, str) else kind.__name__ if isinstance(kind, type) else str(kind)
    if not _CHECKED.fullmatch(text):
        return value
    choices = text.split(" | ")
    for choice in choices:
        item = choice.removeprefix("tuple[").removesuffix(", ...]")
        if item == choice and _is(item, value):
            return float(value) if item == "float" else value
        if item != choice and isinstance(value, tuple) and all(_is(item, v) for v in value):
            return tuple(map(float, value)) if item == "float" else value
    raise PlanError(f"{field.name} of {name} must be {_in_words(choices)}. Got {_shown(value)}.")


def _is(kind: str, value: Any) -> bool:
    if kind == "None":
        return value is None
    if isinstance(value, bool) or kind == "bool":
        return kind == "bool" and isinstance(value, bool)
    return isinstance(value, str if kind == "str" else int if kind == "int" else (int, float))


def _in_words(choices: list[str]) -> str:
    return " or ".join(
        _WORDS[c]
        if c in _WORDS
        else f"a list, each {_WORDS[c.removeprefix('tuple[').removesuffix(', ...]')]}"
        for c in choices
    )


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, (bool, int, float, str)) else type(value).__name__
