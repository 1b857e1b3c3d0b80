"""The guarantee: what was proven, about whom, against whom, and on which conditions, as a value.

It prints as four lines that a data-protection officer can read, and as JSON that a machine can. One function,
`guarantee_for`, builds every one of them: before a run from what its noise will be, after it from how its
noise was really made. `AllRuns` is what all runs that were charged to one account promise together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol, get_args

from cloister.core.document import check_format
from cloister.core.errors import InputError
from cloister.core.spelling import counted
from cloister.privacy.accounting import Prices
from cloister.privacy.caveats import Caveat, Grade, caveats_in_old_words, merged, reasons_of
from cloister.privacy.events import RelationName, UnitName
from cloister.privacy.randomness import Origin
from cloister.privacy.statement import ALL_OTHERS, OneOf, Statement, percent, statement_of
from cloister.privacy.tradeoff import FALSE_ALARMS, Envelope, GaussianCurve, TradeOff, curve_from_dict


@dataclass(frozen=True)
class AllRuns:
    r"""Gaussian DP of all runs of a population: those so far, and all there may ever be.

    Parameters
    ----------
    population : str
        Whose account.
    runs : int
        Charges so far.
    relation : {"replace", "zero_out"}
        The account's.
    spent : float
        :math:`\mu` of all charges so far, the root of their sum of squares: proven if their plans were not
        chosen by what earlier runs showed.
    budget : float
        :math:`\mu` of the account, which all charges together never pass: proven however plans are chosen.
    doubts : tuple of Caveat
        Those of all charges.
    adversary : str, optional
        Against whom all its runs are priced; None if no run was charged, or a file does not say.
    unit : {"task", "record", "person"}
        Whose account: all of this is said of one of these, also where a run of it protects whole tasks.

    References
    ----------
    Smith and Thakurta, "Fully adaptive composition for Gaussian differential privacy", arXiv:2210.17520.

    Examples
    --------
    >>> together = AllRuns("schools", 2, "replace", spent=0.5, budget=1.0)
    >>> round(together.detection(), 3)
    0.26
    """

    population: str
    runs: int
    relation: RelationName
    spent: float
    budget: float
    doubts: tuple[Caveat, ...] = ()
    adversary: str | None = None
    unit: UnitName = "task"

    def __post_init__(self) -> None:
        object.__setattr__(self, "doubts", tuple(self.doubts))
        if self.unit not in get_args(UnitName):
            raise InputError(f"unit must be one of {', '.join(get_args(UnitName))}. Got {self.unit!r}.")
        if not (0 <= self.spent <= self.budget * (1 + 1e-6)):
            raise InputError(f"What is spent must be within the budget. Got {self.spent!r}, {self.budget!r}.")

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why nothing can be promised, if that is so."""
        return reasons_of(Grade.VOID, self.doubts)

    @property
    def unproven(self) -> tuple[str, ...]:
        """Why it is not proven to the last bit, if it is not."""
        return reasons_of(Grade.LAST_BIT, self.doubts)

    def detection(self, false_alarms: float = FALSE_ALARMS, *, tasks: int = 1) -> float:
        """Return what any test can detect from everything that any charged run shows, ever.

        It is everything, 1, where nothing can be promised.
        """
        curve = Envelope(()) if self.reasons else GaussianCurve(self.budget)
        return curve.detection(false_alarms, tasks)

    def __str__(self) -> str:
        if self.reasons:
            return (
                f"Over all runs charged to the account of {self.population!r} nothing can be promised, "
                f"because of one of them {'; '.join(self.reasons)}"
            )
        so_far = percent(GaussianCurve(self.spent).detection())
        runs = f"the {counted(self.runs, 'run')}"
        last_bit = "; this is not proven to the last bit, because of one of them " if self.unproven else ""
        last_bit += "; ".join(self.unproven)
        whom = self.adversary or "those whom its runs are priced against"
        of_one = "" if self.unit == "task" else f" of one {self.unit}, and not of a task as a whole,"
        return (
            f"Over {runs} charged so far to the account of {self.population!r}, under {self.relation} and "
            f"against {whom}, a test{of_one} detects at most {so_far} of cases if none was chosen by what "
            f"another showed, and at most {percent(self.detection())} over all runs that will ever be "
            f"charged to it, however they are chosen (with 5 % false alarms){last_bit}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON; accounts of tasks are as in files that did not say the unit yet."""
        found = asdict(self) | {"doubts": [doubt.to_dict() for doubt in self.doubts]}
        return {name: value for name, value in found.items() if (name, value) != ("unit", "task")}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AllRuns:
        try:
            return cls(**{**values, "doubts": tuple(map(Caveat.from_dict, values["doubts"]))})
        except (TypeError, KeyError) as error:
            raise InputError(f"What all runs promise needs all its fields. Got {values!r}.") from error


#: The first had words for doubts, and did not say its format; the second had no curve; the third other words.
FORMAT = "cloister guarantee 4"
_EARLIER = ("cloister guarantee 2", "cloister guarantee 3")
#: What is said of a trusted curator.
TRUSTED_CURATOR = (
    "a trusted curator sees each clipped message; nothing is claimed against the curator or network observers"
)

#: What is said before it of tasks that trust no curator, and ran on one machine all the same.
ON_ONE_MACHINE = (
    "all tasks of this run were on one machine, and whoever operates it holds all rows and could see every "
    "message and all noise. Against everybody else this holds: "
)

#: Which data the guarantee covers. Whether a task's data fit shows to nobody but those who hold them.
DOMAIN = (
    "any other data that fit the codebook; where one operator holds all rows, data that do not fit are "
    "refused before anything is charged, to the operator alone; where tasks are apart, a task whose data do "
    "not fit sends zeros and is told at home"
)

#: Added where tasks are in groups.
PUBLIC_GROUPS = (
    "which group a task is in is public, and not protected: other data are those of a task in the same group"
)

#: Added where records send.
SAME_COUNTS = "how many records a task has is the same in both worlds, and not protected"

#: Which releases the guarantee is about.
THIS_RUN = (
    "this is for this run alone, one fit, and for the rows as they were given to it: other runs on the same "
    "rows, and whatever chose or scaled rows before, are no part of it"
)


def domain_of(grouped: bool, by_record: bool) -> str:
    """Return which data a guarantee covers."""
    return "; ".join([DOMAIN, *[PUBLIC_GROUPS] * grouped, *[SAME_COUNTS] * by_record])


class _Noise(Protocol):
    """What this module needs of a mechanism."""

    @property
    def kind(self) -> str: ...

    @property
    def doubts(self) -> tuple[Caveat, ...]: ...


@dataclass(frozen=True)
class NoiseMade:
    """How the noise of a run is made: which kind, from where, and its doubts.

    `doubts` are those of the mechanism, of the source of randomness and of the engine; `together` says that
    tasks which add the noise themselves were all on one machine.

    Examples
    --------
    >>> from cloister.privacy.mechanisms import Gaussian
    >>> made = NoiseMade.by(Gaussian(1.0), Origin.SEED)
    >>> str(made), [str(doubt.grade) for doubt in made.doubts]
    ('INSECURE: exact integer noise on a fixed-point sum, from a seed, for tests and papers', ['void'])
    """

    kind: str
    origin: Origin
    doubts: tuple[Caveat, ...] = ()
    together: bool = False

    @classmethod
    def by(cls, mechanism: _Noise, origin: Origin, engine: Iterable[Caveat] = ()) -> NoiseMade:
        """Noise that a mechanism makes from randomness of this origin; `engine` are the engine's doubts."""
        return cls(mechanism.kind, origin, merged(mechanism.doubts, origin.doubts, engine))

    @classmethod
    def none(cls, engine: Iterable[Caveat] = ()) -> NoiseMade:
        """No noise: nothing is released, or it is released as it is."""
        return cls("none", Origin.NOWHERE, merged(engine))

    def __str__(self) -> str:
        return self.origin.describe(self.kind) + ("; all on one machine" if self.together else "")


@dataclass(frozen=True)
class Guarantee:
    """What the other tasks, even all colluding, can learn about one task.

    Parameters
    ----------
    epsilon, delta : float
        Joint differential privacy parameters; epsilon may be infinite.
    relation : {"replace", "zero_out"}
        Which two worlds cannot be told apart.
    n_tasks : int
        Public number of tasks.
    accountant : str
        Who proved it.
    participation : str
        Who takes part when, and who may know it.
    noise : str
        Where the noise comes from.
    unit : {"task", "record", "person"}, default="task"
        Who is protected.
    trust : str
        Who is trusted with what.
    other_epsilon : float, optional
        Epsilon under the other relation, at the same delta.
    doubts : tuple of Caveat, default=()
        Doubts about it. With one of grade void it does not hold; with others, not proven to the last
        bit, it does, and says so.
    domain : str
        Which other data a task's data cannot be told from, and what becomes of data outside.
    curve : TradeOff, optional
        The whole trade-off curve, where it is proven; epsilon and delta alone otherwise.
    scope : str
        Which releases it is about.
    all_runs : AllRuns, optional
        What all runs promise together that were charged to the same ledger.
    against : str
        Who cannot tell; a file says so where that is not all other tasks together.
    units : int, optional
        The public number of what is protected, at most, where that is not tasks.
    one_of : OneOf, optional
        What it promises together with other outcomes under the same budget.

    Examples
    --------
    >>> g = Guarantee(1.0, 1e-5, "replace", 139, "exact Gaussian DP", "every task takes part in every round",
    ...     "floating point, system entropy", other_epsilon=0.47, curve=GaussianCurve(0.268))
    >>> g.holds, g.mu, round(g.detection(), 4), round(g.detection(tasks=2), 4)
    (True, 0.268, 0.0843, 0.1337)
    >>> print(str(g).splitlines()[0])
    This guarantee holds.
    >>> Guarantee.from_dict(g.to_dict()) == g
    True
    """

    epsilon: float
    delta: float
    relation: RelationName
    n_tasks: int
    accountant: str
    participation: str
    noise: str
    unit: UnitName = "task"
    trust: str = TRUSTED_CURATOR
    other_epsilon: float | None = None
    doubts: tuple[Caveat, ...] = ()
    domain: str = DOMAIN
    curve: TradeOff | None = None
    scope: str = THIS_RUN
    all_runs: AllRuns | None = None
    against: str = ALL_OTHERS
    units: int | None = None
    one_of: OneOf | None = None

    def __post_init__(self) -> None:
        if self.unit not in get_args(UnitName):
            raise InputError(f"unit must be one of {', '.join(get_args(UnitName))}. Got {self.unit!r}.")
        if not self.epsilon >= 0:
            raise InputError(f"epsilon must be at least 0. Got {self.epsilon!r}. Price the plan first.")
        if not 0 <= self.delta <= 1:
            raise InputError(f"delta must be in [0, 1]. Got {self.delta!r}. Use default_delta(n_tasks).")
        if self.relation not in ("replace", "zero_out"):
            raise InputError(f"relation must be 'replace' or 'zero_out'. Got {self.relation!r}. Choose one.")
        object.__setattr__(self, "doubts", tuple(self.doubts))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it does not hold, if it does not."""
        return reasons_of(Grade.VOID, self.doubts)

    @property
    def unproven(self) -> tuple[str, ...]:
        """Why it is not proven to the last bit, if it is not."""
        return reasons_of(Grade.LAST_BIT, self.doubts)

    @property
    def protected(self) -> int:
        """The public number of what is protected, at most."""
        return self.n_tasks if self.units is None else self.units

    def some(self, count: int) -> str:
        """Return so many of what is protected, in words: one task, 2 records."""
        return f"one {self.unit}" if count == 1 else f"{count} {self.unit}s"

    @property
    def holds(self) -> bool:
        """Whether epsilon is finite and nothing makes it void."""
        return math.isfinite(self.epsilon) and not self.reasons

    @property
    def proven_to_the_last_bit(self) -> bool:
        """Whether it holds, lowest bits of floating-point numbers included."""
        return self.holds and not self.doubts

    @property
    def mu(self) -> float | None:
        """The parameter of exact Gaussian DP, where that is proven."""
        return self.curve.mu if isinstance(self.curve, GaussianCurve) else None

    @property
    def tradeoff(self) -> TradeOff:
        """The curve; where none is known, what epsilon and delta say."""
        if self.curve is not None:
            return self.curve
        return Envelope(((self.epsilon, self.delta),) if math.isfinite(self.epsilon) else ())

    def detection(self, false_alarms: float = FALSE_ALARMS, *, tasks: int = 1) -> float:
        """Return the largest share of cases that any test about one task can detect.

        Parameters
        ----------
        false_alarms : float, default=0.05
            Share of cases in which the test is wrong about the other world. Guessing detects as much.
        tasks : int, default=1
            How many tasks change at once: those that a person has rows in, or that one owner has.
        """
        return self.tradeoff.detection(false_alarms, tasks)

    def shared_by(self, outcomes: int) -> OneOf:
        """Return what each of so many outcomes says of all, whose guarantee this is."""
        return OneOf(outcomes, self.epsilon, self.delta, self.detection())

    @property
    def statement(self) -> Statement:
        """The guarantee in words: four lines, and technicalities."""
        return statement_of(self)

    def __str__(self) -> str:
        return str(self.statement)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that strict JSON can hold; infinity becomes the text "inf".

        What follows from the fields, the detection rate and the statement in words, is there for readers.

        Examples
        --------
        >>> g = Guarantee(float("inf"), 1e-5, "replace", 9, "exact Gaussian DP", "everyone", "none")
        >>> g.to_dict()["epsilon"], g.to_dict()["statement"]["who is protected"]
        ('inf', 'nobody.')
        """
        out: dict[str, Any] = {"format": FORMAT} | {f.name: getattr(self, f.name) for f in fields(self)}
        if self.against == ALL_OTHERS:
            del out["against"]
        if self.units is None:
            del out["units"]
        if self.one_of is None:
            del out["one_of"]
        else:
            out["one_of"] = self.one_of.to_dict()
        out["doubts"] = [doubt.to_dict() for doubt in self.doubts]
        out["curve"] = None if self.curve is None else self.curve.to_dict()
        out["all_runs"] = None if self.all_runs is None else self.all_runs.to_dict()
        for name in ("epsilon", "other_epsilon"):
            if out[name] is not None and math.isinf(out[name]):
                out[name] = "inf"
        rate = {"false_alarms": FALSE_ALARMS, "at_most": self.detection()}
        return out | {"detection": rate, "statement": self.statement.to_dict()}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), allow_nan=False, ensure_ascii=False, indent=2)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Guarantee:
        """Read what :meth:`to_dict` wrote, here or in an older version."""
        if values.get("format") not in _EARLIER:
            check_format(values.get("format"), FORMAT, "A guarantee")
        values = _without_old_words(values) if "caveats" in values else values
        derived = {"format", "detection", "statement"}
        unknown = sorted(set(values) - derived - {f.name for f in fields(cls)})
        if unknown:
            raise InputError(
                f"A guarantee has no field {unknown[0]!r}. Got {unknown}. Remove what is unknown."
            )
        given = {name: value for name, value in values.items() if name not in derived}
        for name in ("epsilon", "other_epsilon"):
            if given.get(name) is not None:
                given[name] = float(given[name])
        given["doubts"] = tuple(map(Caveat.from_dict, given.get("doubts", ())))
        for name, read in (
            ("curve", curve_from_dict),
            ("all_runs", AllRuns.from_dict),
            ("one_of", OneOf.from_dict),
        ):
            if given.get(name) is not None:
                given[name] = read(given[name])
        try:
            return cls(**given)
        except TypeError as error:
            raise InputError(f"A guarantee needs all its fields. Got {sorted(given)}: {error}.") from error


def guarantee_for(
    prices: Prices,
    made: NoiseMade,
    doubts: Iterable[Caveat] = (),
    *,
    n_tasks: int,
    participation: str,
    trust: str = TRUSTED_CURATOR,
    against: str = ALL_OTHERS,
    domain: str = DOMAIN,
) -> Guarantee:
    """Build a guarantee: what was priced, how the noise is made, and all doubts about it.

    Parameters
    ----------
    prices : Prices
        Epsilon and delta under both relations, and who proved them.
    made : NoiseMade
        How the noise is made, or will be; without noise that protects, it says none.
    doubts : iterable of Caveat
        Those of the plan, and of whatever the release rests on.
    n_tasks : int
        Public number of tasks.
    participation, trust, against, domain : str
        Who takes part when, who is trusted with what, who cannot tell, and which data it covers.

    Examples
    --------
    >>> from cloister.privacy.accounting import Price
    >>> from cloister.channel import Relation
    >>> prices = Prices(Relation.REPLACE, Price(1.0, 1e-5, "exact Gaussian DP"), Price(0.5, 1e-5, "the same"))
    >>> seeded = NoiseMade("integer noise", Origin.SEED, Origin.SEED.doubts)
    >>> guarantee_for(prices, seeded, n_tasks=9, participation="everyone").holds
    False
    """
    return Guarantee(
        epsilon=prices.own.epsilon,
        delta=prices.own.delta,
        relation=prices.relation.value,
        n_tasks=n_tasks,
        accountant=prices.own.accountant,
        participation=participation,
        noise=str(made),
        unit=prices.unit,
        units=None if prices.unit == "task" else prices.units,
        trust=ON_ONE_MACHINE + trust if made.together else trust,
        against=f"{against}, but not whoever operates this machine" if made.together else against,
        other_epsilon=prices.other.epsilon,
        doubts=merged(doubts, made.doubts),
        domain=domain,
        curve=prices.curve,
    )


def _without_old_words(values: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a guarantee that was written when doubts were words: before 0.2."""
    caveats = [Caveat(Grade.VOID, caveat).to_dict() for caveat in values["caveats"]]
    made = [doubt.to_dict() for doubt in caveats_in_old_words(str(values.get("noise", "")))]
    return {name: value for name, value in values.items() if name != "caveats"} | {"doubts": caveats + made}
