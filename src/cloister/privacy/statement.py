"""A guarantee in words: four lines that anyone can read, and the technicalities below them.

Who is protected, against whom, how strongly, and what is not covered: the same lines in Python, in commands,
on pages and in JSON. Bounds are in a few digits: an upper one never smaller than it is, a lower one never
larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import TYPE_CHECKING, Any

from cloister.core.errors import InputError
from cloister.core.spelling import counted
from cloister.privacy.events import RelationName, UnitName

if TYPE_CHECKING:
    from cloister.privacy.guarantee import AllRuns, Guarantee


def ceiling(value: float, digits: int) -> float:
    """Return the smallest number of so many significant digits that is at least `value`.

    Examples
    --------
    >>> ceiling(0.12341, 4), ceiling(0.5, 4)
    (0.1235, 0.5)
    """
    if not math.isfinite(value):
        return value
    return float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value))))


def rounded_up(value: float, digits: int = 4) -> str:
    """Write a bound in a few digits, never smaller than it is.

    Examples
    --------
    >>> rounded_up(12.12001), rounded_up(8.386, 2)
    ('12.13', '8.4')
    """
    return str(value) if not math.isfinite(value) else format(ceiling(value, digits), f".{digits}g")


def rounded_down(value: float, digits: int = 3) -> str:
    """Write a lower bound in a few digits, never larger than it is.

    Examples
    --------
    >>> rounded_down(0.8999), rounded_down(12.19)
    ('0.899', '12.1')
    """
    if not math.isfinite(value):
        return str(value)
    floor = Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(repr(float(value)))
    return format(float(floor), f".{digits}g")


#: The first sentence of a guarantee that holds.
HOLDS = "This guarantee holds."
#: At this rate of detection, with 5 % false alarms, a guarantee that holds says in capitals how little it is.
HARDLY = 0.8
#: What is tested, and what the relation means.
_TESTED: dict[RelationName, str] = {
    "replace": "holds one set of data rather than any other that fits the codebook",
    "zero_out": "takes part with its data rather than stays silent",
}
_WORLDS: dict[tuple[UnitName, RelationName], str] = {
    ("task", "replace"): "the two worlds differ in all data of one task",
    ("task", "zero_out"): "in one of the two worlds one task says only zeros",
    ("record", "replace"): "the two worlds differ in one record of one task",
    ("record", "zero_out"): "in one of the two worlds one record adds nothing to what its task says",
    ("person", "replace"): "the two worlds differ in all records that one person has in one task",
    (
        "person",
        "zero_out",
    ): "in one of the two worlds one person's records add nothing to what their task says",
}
#: Against whom a guarantee holds where a curator is trusted.
ALL_OTHERS = (
    "all other tasks together, even if they collude and pool their data, their models and everything that is "
    "published, and everybody else who sees what is published"
)
_HOLDERS = (
    "whoever has rows sees them: the task itself and, if all rows are in one table or process, its operator"
)
_HANDED_ON = "a model, prediction or score that leaves its task is a release that nobody has paid for"

#: What `Origin` and `Trust` say of keys that are secret, of noise added at home, and of tasks on one machine.
_KEYED, _AT_HOME, _TOGETHER = "keyed by the operating system", "at home", "all on one machine"


_SUCH = ", such as a pupil of one school,"


@dataclass(frozen=True)
class Statement:
    """What a guarantee says.

    Parameters
    ----------
    who, against, strength, not_covered : str
        The four lines.
    warnings : tuple of str
        What must be read before them: that it does not hold, or hardly protects, or is not proven to the last
        bit.
    details : tuple of (str, str)
        Technicalities: a label and its text.
    verdict : str
        The first sentence of all, of one that holds.

    Examples
    --------
    >>> print(Statement("us", "them", "well", "the rest", details=(("Noise", "none"),)))
    Who is protected: us.
    Against whom: them.
    How strongly: well.
    Not covered: the rest.
    <BLANKLINE>
    Technically
      Noise: none.
    """

    who: str
    against: str
    strength: str
    not_covered: str
    warnings: tuple[str, ...] = ()
    details: tuple[tuple[str, str], ...] = ()
    verdict: str = ""

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """The four lines, each with its label."""
        texts = (self.who, self.against, self.strength, self.not_covered)
        labels = ("Who is protected", "Against whom", "How strongly", "Not covered")
        return tuple(zip(labels, texts, strict=True))

    @property
    def explained(self) -> tuple[tuple[str, str], ...]:
        """The technicalities, with the words explained that need it."""
        return tuple((label, "; ".join(_with_meanings(text))) for label, text in self.details)

    @property
    def short(self) -> str:
        """The four lines, with what must be read before them."""
        lines = (f"{label}: {text}." for label, text in self.lines)
        return "\n".join([*filter(None, [self.verdict]), *self.warnings, *lines])

    def in_words(self, words: Callable[[str], str]) -> Statement:
        """Return it in other words for tasks and rows; the technicalities keep theirs."""
        who, against, strength, rest = (words(text) for _, text in self.lines)
        who = who if who == self.who else who.replace(_SUCH, "")  # an example for those who read of tasks
        warnings = tuple(map(words, self.warnings))
        return Statement(who, against, strength, rest, warnings, self.details, self.verdict)

    def __str__(self) -> str:
        parts = [self.short]
        if self.details:
            parts += ["", "Technically", *(f"  {label}: {text}." for label, text in self.explained)]
        return "\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: the labels are the keys."""
        return {
            "verdict": self.verdict,
            "warnings": list(self.warnings),
            **{label.lower(): f"{text}." for label, text in self.lines},
            "technically": {label.lower(): f"{text}." for label, text in self.explained},
        }


def percent(share: float) -> str:
    """Write a share that is a bound in per cent, with three digits, never smaller than it is.

    Examples
    --------
    >>> percent(0.08385), percent(1.0)
    ('8.39 %', '100 %')
    """
    return f"{rounded_up(100 * share, 3)} %"


def per_hundred(share: float) -> int:
    """Return of how many in a hundred a share is a bound, never fewer.

    Examples
    --------
    >>> per_hundred(0.07), per_hundred(0.0700001)
    (7, 8)
    """
    return math.ceil(Decimal(repr(float(share))) * 100)


@dataclass(frozen=True)
class OneOf:
    """What all outcomes under one budget promise together, said wherever one of them is quoted.

    Parameters
    ----------
    outcomes : int
        How many there are.
    epsilon, delta : float
        Of all of them together.
    detection : float
        The largest share of cases that a test can detect from all, with 5 % false alarms.

    Examples
    --------
    >>> print(OneOf(2, 1.0, 1e-5, 0.1083))
    one of 2 outcomes under one budget: together epsilon 1, delta 1e-05, detected in at most 10.9 % of cases
    """

    outcomes: int
    epsilon: float
    delta: float
    detection: float

    def __str__(self) -> str:
        return (
            f"one of {self.outcomes} outcomes under one budget: together epsilon {rounded_up(self.epsilon)}, "
            f"delta {rounded_up(self.delta)}, detected in at most {percent(self.detection)} of cases"
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"epsilon": "inf" if math.isinf(self.epsilon) else self.epsilon}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> OneOf:
        try:
            return cls(**{**values, "epsilon": float(values["epsilon"])})
        except (TypeError, KeyError, ValueError) as error:
            raise InputError(f"What outcomes promise together needs all fields. Got {values!r}.") from error


def _with_meanings(text: str) -> Iterator[str]:
    """Yield a technicality, and what its words mean where they need it: who draws the key of the noise."""
    yield text
    if _KEYED in text:
        apart = _AT_HOME in text and _TOGETHER not in text
        whose = (
            "each task's key is a secret that its own computer draws"
            if apart
            else ("the key is a secret that the computer draws for this run")
        )
        yield f"{whose}, and without it nobody can draw the same noise again and subtract it"


def statement_of(guarantee: Guarantee) -> Statement:
    """Put a guarantee in words."""
    g = guarantee
    if math.isinf(g.epsilon):
        nothing = "no noise protects what tasks say, and the others may learn everything"
        lines = ("nobody", "nobody", "not at all", f"everything: {nothing}")
        return Statement(*lines, warnings=(f"NOT PRIVATE: {nothing}.",), details=_conditions(g))
    silent = g.epsilon == 0 and g.delta == 0
    not_covered = (_HOLDERS, g.scope, _HANDED_ON) if silent else (g.trust, _HOLDERS, g.scope, _HANDED_ON)
    return Statement(
        _who(g),
        g.against,
        "completely: nothing leaves any task" if silent else ". ".join(_strength(g)),
        ". ".join([not_covered[0], *(text[:1].upper() + text[1:] for text in not_covered[1:])]),
        tuple(_warnings(g, silent)),
        () if silent else _details(g),
        HOLDS if g.holds else "",
    )


def _warnings(g: Guarantee, silent: bool) -> Iterator[str]:
    """Say first whether to read on."""
    if g.reasons:
        yield f"DOES NOT HOLD: {'; '.join(g.reasons)}. What follows would hold otherwise."
    if g.unproven:
        yield f"NOT PROVEN TO THE LAST BIT: {'; '.join(g.unproven)}."
    if g.one_of is not None:
        yield f"NOT THE WHOLE PRICE: this is {g.one_of}."
    if g.all_runs is not None:
        yield from _warnings_of_others(g, g.all_runs)
    if g.holds and g.detection() >= HARDLY:
        yield (
            f"HARDLY ANY PROTECTION: a test with 5 % false alarms may detect what one {g.unit} holds in "
            f"{percent(g.detection())} of cases."
        )
    if silent:
        yield f"Nothing leaves any {g.unit}: the others learn nothing from it (epsilon 0)."


def _warnings_of_others(g: Guarantee, together: AllRuns) -> Iterator[str]:
    """Say what other runs on the same account take away; this run's own doubts have been said."""
    void = [reason for reason in together.reasons if reason not in g.reasons]
    unproven = [reason for reason in together.unproven if reason not in g.unproven]
    if void:
        yield f"NOTHING CAN BE PROMISED OVER ALL RUNS, because of another of them: {'; '.join(void)}."
    if unproven:
        yield f"NOT PROVEN TO THE LAST BIT OVER ALL RUNS, because of another: {'; '.join(unproven)}."


def _who(g: Guarantee) -> str:
    if g.unit != "task":
        whose = (
            "record of any of the {} tasks, such as one visit of a patient to a hospital,"
            if g.unit == "record"
            else "person in any of the {} tasks, with as many of their records there as the plan lets send,"
        )
        several = "several records" if g.unit == "record" else "records in several tasks"
        whom = "all other tasks and the public" if g.against == ALL_OTHERS else "those named below"
        return (
            f"each {whose.format(g.n_tasks)} from {whom}, but not from the task that has the rows. A person "
            f"with {several} is a group, at the rates below. A task as a whole is not protected: what its "
            "records have in common may show"
        )
    inside = (
        "just as their task is" if g.relation == "replace" else "at the rate for a person that is said below"
    )
    whom = "all other tasks" if g.against == ALL_OTHERS else "those named below"
    return (
        f"each of the {g.n_tasks} {g.unit}s, with all its rows. A person whose rows are in one task only"
        f"{_SUCH} is protected from {whom}, {inside}, but not from their own task, which has the rows"
    )


def _strength(g: Guarantee) -> Iterator[str]:
    yield (
        f"suppose that they test whether one {g.unit} {_TESTED[g.relation]}. With 5 % false alarms they "
        f"detect it in at most {percent(g.detection())} of cases (5 % is guessing)"
    )
    if g.unit == "task":
        yield from _for_several_tasks(g)
    else:
        steps = 1 if g.relation == "replace" else 2  # a change is two by way of silence
        rates = ((k, percent(g.detection(tasks=k * steps))) for k in (2, 3, 10))
        whole = "; ".join(f"if {k} change at once, {rate}" for k, rate in rates)
        such = "a person with several records" if g.unit == "record" else "a person in several tasks"
        yield f"For groups, such as {such}, or a family: {whole}"
    if g.all_runs is not None:
        yield str(g.all_runs)


def _for_several_tasks(g: Guarantee) -> Iterator[str]:
    # Replacing what a task holds is one step under replace, and two by way of silence under zero_out.
    steps = 1 if g.relation == "replace" else 2
    rates = {k: percent(g.detection(tasks=k * steps)) for k in (1, 2, 3) if k <= g.n_tasks}
    if steps == 1:
        del rates[1]
    if rates:
        each = (f"in {counted(k, 'task')} it is {rate}" for k, rate in rates.items())
        yield f"For a person with rows {', '.join(each)}"


def _details(g: Guarantee) -> tuple[tuple[str, str], ...]:
    epsilon, delta = rounded_up(g.epsilon), rounded_up(g.delta)
    whom = f"the {g.n_tasks} tasks" if g.units is None else f"at most {g.units} {g.unit}s"
    odds = (
        f"({epsilon}, {delta})-joint differential privacy for each of {whom}: the "
        "probability of anything that the others may see changes between the two worlds by a factor of at "
        f"most {rounded_up(math.exp(min(g.epsilon, 700.0)), 3)} (e to the power of epsilon = {epsilon})"
    )
    if g.delta > 0:
        odds += f", except with a probability of at most {delta} (delta)"
    return ("Privacy", odds), ("Curve", _curve(g)), ("Relation", _relations(g)), *_conditions(g)


def _curve(g: Guarantee) -> str:
    rates = ", ".join(f"{percent(g.detection(a))} with {100 * a:g} %" for a in (0.001, 0.01, 0.1))
    if g.mu is not None:
        kind = f"exact Gaussian DP with mu = {rounded_up(g.mu)}"
    elif g.curve is None:
        kind = "no more is proven than epsilon and delta say"
    else:
        kind = "many pairs of epsilon and delta that all hold"
    return f"{kind}; detected at most: {rates} false alarms"


def _relations(g: Guarantee) -> str:
    worlds = {relation: _WORLDS[g.unit, relation] for relation in _TESTED}
    own = f"{g.relation} ({worlds[g.relation]})"
    if g.other_epsilon is None:
        return own
    other: RelationName = "zero_out" if g.relation == "replace" else "replace"
    return (
        f"{own}; under {other} ({worlds[other]}) the same noise has epsilon = {rounded_up(g.other_epsilon)} "
        "at the same delta"
    )


def _conditions(g: Guarantee) -> tuple[tuple[str, str], ...]:
    return (
        ("Domain", g.domain),
        ("Participation", g.participation),
        ("Noise", g.noise),
        ("Accounting", g.accountant),
    )
