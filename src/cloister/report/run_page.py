"""A report on one run: what was learned, what was promised, who saw what, and how to check it.

There are three editions. The public one is made of `PublicPart` alone, which holds nothing of any task but by
way of the noisy board. The operator's adds what all models say, and a task's own what its model says: both
are private, and say so.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cloister.app.gains import Gains, measure_gains
from cloister.app.result import TableRun
from cloister.app.run_findings import RunFindings
from cloister.app.run_record import RunRecord
from cloister.app.summary import Coefficient, number
from cloister.app.task_model import TaskModel
from cloister.core.arrays import Floats
from cloister.core.errors import InputError
from cloister.core.spelling import counted
from cloister.core.tasks import Tasks
from cloister.ledger.accounts import Balance
from cloister.plan.plan import Plan
from cloister.privacy.guarantee import Guarantee
from cloister.privacy.statement import per_hundred, percent, rounded_down, rounded_up
from cloister.privacy.tradeoff import FALSE_ALARMS
from cloister.report.figures import histogram
from cloister.report.flow import flow_picture, seen_under
from cloister.report.html_page import Stamp, load_template
from cloister.report.run_figures import (
    SignalToNoise,
    budget_picture,
    curve_picture,
    hundred_picture,
    leaning_picture,
    own_row,
    population_row,
    rounds_picture,
    signal_to_noise,
)
from cloister.store.billboard import Billboard
from cloister.store.files import write_file, write_private
from cloister.tables.codebook import Codebook
from cloister.tables.coefficient_units import coefficient_names, in_user_units
from cloister.tables.naming import Naming

#: Each picture is drawn for wide and for narrow screens.
WIDE, NARROW = (760, 360), (380, 330)
#: Most coefficients that a page lists.
MOST_COEFFICIENTS = 60
#: What columns of coefficients are called.
NAMES = {
    "estimate": "estimate",
    "std_error": "std. error",
    "spread": "sd between tasks",
    "new_task": "new task",
    "alone": "alone",
    "prior": "prior",
    "prior_sd": "prior sd",
}


@dataclass(frozen=True, eq=False)
class PublicPart:
    """What anybody may see of a finished run; the public edition is made of this alone.

    Attributes
    ----------
    plan, board, guarantee : Plan, Billboard, Guarantee
        What was run, every noisy release of it, and what was promised.
    codebook : Codebook, optional
        What was public about the columns, before.
    head : str, optional
        The hash that stands for all public files; of a run that has none, that of its board.
    folder : str
        What to call the run's folder in commands.
    candidates : int, optional
        How many runs it was chosen among by the tasks' vote, if it was.
    balance : Balance, optional
        The account that the run was charged to.
    audit : mapping, optional
        What an audit of the plan found: see `read_audit`.
    evaluation : mapping, optional
        For which share of tasks joining pays, as a number that was paid for: see `read_evaluation`.
    findings : Findings, optional
        What the board says of all tasks, if somebody has read it off already.
    record : RunRecord
        Who held the rows, who approved the run, which charge paid for it: as far as it is known.
    """

    plan: Plan
    board: Billboard
    guarantee: Guarantee
    codebook: Codebook | None = None
    head: str | None = None
    folder: str = "RUN"
    candidates: int | None = None
    balance: Balance | None = None
    audit: Mapping[str, Any] | None = None
    evaluation: Mapping[str, float] | None = None
    findings: RunFindings | None = None
    record: RunRecord = field(default_factory=RunRecord)

    @classmethod
    def of(cls, run: TableRun, balance: Balance | None = None) -> PublicPart:
        """Take the public part of a run over a table; models are left behind."""
        book = run.units if isinstance(run.units, Codebook) else None
        found = cls(run.plan, run.board, run.guarantee, book, findings=run.findings, record=run.record)
        if run.choice is not None:
            found = replace(found, head=run.choice.head, candidates=len(run.choice.plans) - 1)
        return found if balance is None else found.charged_to(balance)

    def charged_to(self, balance: Balance) -> PublicPart:
        """Return it with the account, and what all runs there promise together if this is one of them."""
        ours = any(charge.plan == self.plan.fingerprint for charge in balance.charges)
        guarantee = replace(self.guarantee, all_runs=balance.all_runs) if ours else self.guarantee
        return replace(self, balance=balance, guarantee=guarantee)

    @property
    def charged(self) -> bool:
        """Whether the account has a charge of this run's plan."""
        charges = () if self.balance is None else self.balance.charges
        return any(charge.plan == self.plan.fingerprint for charge in charges)

    @cached_property
    def content(self) -> dict[str, Any]:
        """What the template needs of it: words, numbers and pictures."""
        findings = self.findings or RunFindings(self.plan, self.board, self.codebook)
        summary = findings.summary(self.guarantee)
        heard = signal_to_noise(self.board.releases)
        noisy = bool(self.plan.rounds) and bool(np.isfinite(heard.ratio).all())
        return {
            "headline": self._headline,
            "about": self._about,
            "task": self.naming.words("task"),
            "tasks": self.naming.words("tasks"),
            "words": self.naming.words,
            "guarantee": self.guarantee,
            "statement": self.guarantee.statement.in_words(self.naming.words),
            "rate": percent(self.guarantee.detection()),
            "percent": percent,
            "by_chance": round(100 * FALSE_ALARMS),
            "found": per_hundred(self.guarantee.detection()),
            "record": self.record,
            "at_home": self.plan.trust.at_home,
            "whom": f"{self.plan.trust.adversary or 'all others'} together",
            "forecast": str(self.plan.forecast()),
            "summary": summary,
            "names": NAMES,
            "unclear": _unclear(summary.coefficients),
            "known": _known(summary.coefficients, ("estimate", "std_error", "spread", "new_task")),
            "coefficients": [
                (found, population_row(found)) for found in summary.coefficients[:MOST_COEFFICIENTS]
            ],
            "attacks": self._attacks if self._testable else (),
            "rounds": len(self.plan.rounds),
            "heard": heard.heard if noisy else None,
            "pictures": self._pictures(heard if noisy else None),
            "balance": self.balance,
            "charged": self.charged,
            "audit": self.audit,
            "evaluation": self.evaluation,
            "seen": self._seen,
            "parties": self._parties,
            "head": self.head or self.board.head.hex(),
            "folder": self.folder,
            "candidates": self.candidates,
            "infinity": math.inf,
            "number": number,
            "counted": counted,
            "up": rounded_up,
            "down": rounded_down,
        }

    def _pictures(self, heard: SignalToNoise | None) -> dict[str, list[str]]:
        """Draw what there is to draw, each picture for wide and for narrow screens."""
        drawn: dict[str, list[str]] = {}
        if self._testable:
            drawn["curve"] = _twice(curve_picture, self.guarantee, sizes=((760, 400), (380, 360)))
            drawn["hundred"] = _twice(hundred_picture, self.guarantee, sizes=((760, 134), (380, 256)))
        if self.plan.rounds:
            drawn["flow"] = _twice(flow_picture, self.plan, sizes=((760, 196), (380, 492)))
        if heard is not None:
            drawn["rounds"] = _twice(rounds_picture, heard)
        if self.balance is not None and self.balance.charges:
            ledger = (self.balance, self.plan.fingerprint)
            drawn["budget"] = _twice(budget_picture, *ledger, sizes=((760, 300), (380, 280)))
        return drawn

    @property
    def _testable(self) -> bool:
        """Whether there is anything to test, and noise that bounds what a test can do."""
        return bool(self.plan.rounds) and math.isfinite(self.guarantee.epsilon)

    @property
    def _headline(self) -> str:
        tasks, told = self.naming.words(f"{self.plan.n_tasks:,} tasks"), self.guarantee
        if not self.plan.rounds:
            return f"{tasks} learned alone: nothing left any of them"
        if math.isinf(told.epsilon):
            return f"{tasks} learned together, and nothing protects them"
        if not told.holds:
            return f"{tasks} learned together, and the guarantee does not hold"
        rate = percent(told.detection())
        one = "one of them" if told.unit == "task" else told.some(1)
        whole = told.one_of
        more = "" if whole is None else f", with all {whole.outcomes} outcomes {percent(whole.detection)}"
        return f"{tasks} learned together: what {one} holds is detected in at most {rate} of cases{more}"

    @property
    def _about(self) -> str:
        if self.codebook is None:
            return ""
        over = self.codebook.exposure
        names = [f"“{part.name}”" for part in self.codebook.features if part is not over]
        listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more columns" if len(names) > 8 else "")
        what = "Number" if self.codebook.classes is None else "Class"
        counted = "" if over is None else f", counted over “{over.name}”"
        goal = f"{what} to predict: “{self.codebook.target.name}”{counted}, from {listed}."
        return " ".join(filter(None, [goal, self.naming.explained]))

    @property
    def _seen(self) -> list[tuple[object, ...]]:
        """What there is to see, and which of the parties sees it."""
        rows = [(self.naming.words(what), *yes) for what, *yes in seen_under(self.plan)]
        return [row[:3] + row[4:] for row in rows] if self.record.rows_together else rows

    @property
    def _parties(self) -> list[str]:
        together = ["the operator, who was the curator"]
        held = together if self.record.rows_together else ["who holds all rows, if one does", "the curator"]
        return [self.naming.words("the task itself"), *held, self.naming.words("other tasks, everybody")]

    @property
    def naming(self) -> Naming:
        """What tasks and rows are called."""
        return Naming() if self.codebook is None else self.codebook.naming

    @property
    def _attacks(self) -> list[tuple[str, list[str]]]:
        """How often the best test is right, for several rates of false alarms and numbers of tasks."""
        most = min(3, self.guarantee.protected)
        return [
            (
                f"{100 * alarms:g} %",
                [percent(self.guarantee.detection(alarms, tasks=k + 1)) for k in range(most)],
            )
            for alarms in (0.001, 0.01, 0.05, 0.1, 0.25)
        ]


def _known(coefficients: Sequence[object], names: Sequence[str]) -> list[str]:
    """Return those columns that anything is known of; the estimate always."""
    some = (name for name in names[1:] if any(getattr(c, name) is not None for c in coefficients))
    return [names[0], *some]


def _unclear(coefficients: Sequence[Coefficient]) -> str:
    """Say that no coefficient stands out, where standard errors are known and that is so."""
    told = [(c.name, c.estimate, c.std_error) for c in coefficients if c.estimate is not None]
    if not told or any(error is None for _, _, error in told):
        return ""
    clear = [name for name, estimate, error in told if error is not None and abs(estimate) >= 2 * error]
    if any(name != "intercept" for name in clear):
        return ""
    return f"No coefficient{' but the intercept' if clear else ''} stands two standard errors from zero."


def _twice(draw: Any, *what: Any, sizes: Sequence[tuple[int, int]] = (WIDE, NARROW)) -> list[str]:
    return [draw(*what, *size) for size in sizes]


def public_page(public: PublicPart) -> str:
    """Return the public edition: plan, board, guarantee and ledger, and nothing of any task.

    A run whose guarantee does not hold has none: its board may tell what tasks hold.
    """
    if not public.guarantee.holds:
        why = "; ".join(public.guarantee.reasons) or "there is no noise"
        raise InputError(
            f"A public edition is for runs whose guarantee holds. This one's does not: {why}. "
            "Leave public=True out, for a page that stays with you."
        )
    return _render(public, edition="public")


def operator_page(public: PublicPart, run: TableRun | None = None, gains: Gains | None = None) -> str:
    """Return the operator's edition: the public part, and what the models of all tasks say. Private.

    Parameters
    ----------
    public : PublicPart
        What anybody may see.
    run : TableRun, optional
        The run with its models.
    gains : Gains, optional
        What joining brought on rows held out.
    """
    return _render(
        public,
        edition="operator",
        private=_of_all(run),
        gains=gains,
        **_gain_picture(gains, public.naming.plural),
    )


def task_page(public: PublicPart, model: TaskModel) -> str:
    """Return one task's own edition: the public part, and its own model. Private: for that task alone."""
    own = model.summary()
    rows = [(found, own_row(found)) for found in own.coefficients[:MOST_COEFFICIENTS]]
    known = _known(own.coefficients, ("estimate", "std_error", "alone", "prior", "prior_sd"))
    known += ["prior_sd"] * ("prior" in known and "prior_sd" not in known)
    return _render(public, edition="task", own=own, own_rows=rows, own_known=known)


def _render(public: PublicPart, **private: Any) -> str:
    return str(load_template("run.html").render(stamp=Stamp.of(public.plan), **public.content, **private))


def _of_all(run: TableRun | None) -> dict[str, Any] | None:
    """Return what the models of all tasks say together. Private."""
    if run is None or not len(run.ids) or not isinstance(run.units, Codebook):
        return None
    models, found = run.models, {"tasks": len(run.ids), "together": _drawn_together(run), "leaning": ()}
    if "rows" in models and "shared_weight" in models:
        rows, weight = models["rows"].astype(float), models["shared_weight"].astype(float)
        kept = np.isfinite(rows) & np.isfinite(weight)
        if kept.any():
            found["leaning"] = _twice(leaning_picture, rows[kept], weight[kept])
            found["tasks"] = int(np.count_nonzero(kept))
            found["most"] = int(np.count_nonzero(weight[kept] > 0.5))
            found["rows"] = (int(rows[kept].min()), float(np.median(rows[kept])), int(rows[kept].max()))
    return found


def _drawn_together(run: TableRun) -> list[tuple[str, list[str]]]:
    """Return for each coefficient where the middle half of tasks lies, alone and joined. Private."""
    if "alone" not in run.models:
        return []
    book, rows = run.codebook, []
    joined, alone = (_in_units(book, run.models[name]) for name in ("coef", "alone"))
    for name, a, j in zip(coefficient_names(book), alone.T, joined.T, strict=True):
        low, high = np.quantile(a[np.isfinite(a)], [0.25, 0.75])
        left, right = np.quantile(j, [0.25, 0.75])
        drawn = _narrower(1 - (right - left) / (high - low)) if high > low else "-"
        rows.append((name, [f"{number(low)} to {number(high)}", f"{number(left)} to {number(right)}", drawn]))
    return rows[:MOST_COEFFICIENTS]


def _narrower(share: float) -> str:
    return f"{'wider' if share < 0 else 'narrower'} by {100 * abs(share):.0f} %"


def _in_units(book: Codebook, weights: Floats) -> Floats:
    return np.stack([in_user_units(book, one)[0] for one in weights])


def _gain_picture(gains: Gains | None, tasks: str) -> dict[str, Any]:
    if gains is None:
        return {}
    limit = max(float(np.quantile(np.abs(gains.changes), 0.97)), 1e-12)
    limit = math.ceil(limit / 10 ** math.floor(math.log10(limit))) * 10 ** math.floor(math.log10(limit))
    axis = "change of " + ("the error" if gains.error != "log-loss" else gains.error) + " by joining"
    draw = [histogram(gains.changes, limit, *size, tasks, axis) for size in (WIDE, NARROW)]
    return {"gain_picture": draw}


def write_page(
    run: TableRun,
    page: Path,
    *,
    public: bool = False,
    task: object = None,
    rows: Callable[[], Tasks] | None = None,
    balance: Balance | None = None,
    audit: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> Path:
    """Write one edition of a run's page: for its operator, for everybody, or for one task.

    Parameters
    ----------
    run : TableRun
        With models, for the editions that are private.
    page : Path
        The HTML file. One that is there is left as it is, unless forced.
    public : bool
        Write the edition that may be published.
    task : optional
        The task whose own edition it is.
    rows : callable, optional
        Returns tasks to measure on who gains, for the operator.
    balance : Balance, optional
        The account that the run was charged to.
    audit : path, optional
        What an audit of the plan found: see `read_audit`.
    force : bool
        Replace a file that is there.
    """
    if page.exists() and not force:
        raise InputError(
            f"{page} is already there and is left as it is. Choose another name, or replace it by force=True."
        )
    part = PublicPart.of(run, balance)
    part = part if audit is None else replace(part, audit=read_audit(audit, run.plan))
    model = None if task is None else run.task_model(task)
    gains = None if rows is None else measure_gains(run, rows())
    return write_edition(part, page, public=public, model=model, run=run, gains=gains)


def write_edition(
    part: PublicPart,
    page: Path,
    *,
    public: bool = False,
    model: TaskModel | None = None,
    run: TableRun | None = None,
    gains: Gains | None = None,
) -> Path:
    """Write a page for everybody, for the task whose model is given, or else for the operator."""
    if public:
        return write_file(page, public_page(part).encode())
    text = operator_page(part, run, gains) if model is None else task_page(part, model)
    return write_private(page, text.encode())


def read_audit(path: str | os.PathLike[str], plan: Plan) -> dict[str, Any]:
    """Read what ``cloister audit RUN --json`` printed; refuse that of another plan.

    Parameters
    ----------
    path : path
        The file.
    plan : Plan
        Which plan it must be of.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        facts = {
            "verdict": str(found["verdict"]),
            "claimed": float(found["claimed_epsilon"]),
            "measured": float(found["measured_epsilon"]),
            "delta": float(found["delta"]),
            "confidence": float(found["confidence"]),
            "reasons": [str(reason) for reason in found["reasons"]],
            "audited": str(found["audited"]["audited"]),
        }
        fingerprint = str(found["audited"]["fingerprint"])
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}. Check the path.") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(
            f"{path} must be what an audit found. Make it with `cloister audit RUN --json > audit.json`."
        ) from None
    if fingerprint != plan.fingerprint:
        raise InputError(
            f"{path} must be of this run's plan, {plan.fingerprint[:16]}. Got {fingerprint[:16]}. Audit this "
            "run's folder."
        )
    return facts


def read_evaluation(path: str | os.PathLike[str], plan: Plan, head: str) -> dict[str, float]:
    """Read what ``cloister evaluate RUN DATA -o FILE`` wrote; refuse what is void, or of another run.

    Files of before name the plan alone.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        guarantee = Guarantee.from_dict(found["guarantee"])
        facts = {"share": float(found["share"]), "noise": float(found["noise"])}
        of_run = str(found["plan"]) == plan.fingerprint and found.get("board", head) == head
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}. Check the path.") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(
            f"{path} must be what `cloister evaluate RUN DATA -o {Path(path).name}` writes. Make it anew."
        ) from None
    if not of_run or not guarantee.holds:
        raise InputError(f"{path} must be of this run, with a guarantee that holds. Evaluate this run again.")
    return facts | {"epsilon": guarantee.epsilon, "delta": guarantee.delta}
