"""Several outcomes of the same tasks under one budget: a run for each, and one price for all of them.

Every outcome has a plan of its own, and a part of the squared Gaussian-DP budget. That costs what one plan
would cost whose messages hold all outcomes and are clipped together: such a message has the same sensitivity,
and where each part has its share of the clip also the same noise. But runs side by side may have different
learners, rounds and missing targets, and each leaves a folder that everything reads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from cloister.app.choice import cost_together, guarantee_together
from cloister.app.task_model import names_of_files
from cloister.core.document import check_format
from cloister.core.errors import BudgetError, CloisterError, InputError, PlanError
from cloister.core.lifts import Relation
from cloister.ledger import Ledger
from cloister.plan.plan import Plan
from cloister.privacy import accounting
from cloister.privacy.events import Cost
from cloister.privacy.guarantee import Guarantee, NoiseMade
from cloister.privacy.randomness import Origin
from cloister.privacy.statement import OneOf
from cloister.privacy.unit import Unit
from cloister.store.billboard import Billboard
from cloister.store.files import write_file
from cloister.store.secret import Secret
from cloister.tables.naming import Naming

PLACE, FORMAT = "outcomes.json", "cloister outcomes 1"
THESE_OUTCOMES = (
    "this is for the runs of all outcomes together, and for the rows as they were given to them: other runs "
    "on the same rows, and whatever chose or scaled rows before, are no part"
)


@dataclass(frozen=True)
class Outcomes:
    """The plans of several outcomes, by their names, that are priced as one.

    Parameters
    ----------
    plans : mapping of str to Plan
        One for each outcome; all of the same tasks, relation and delta, and with everyone in every round.
    """

    plans: Mapping[str, Plan]

    def __post_init__(self) -> None:
        of = {(plan.n_tasks, plan.relation, plan.delta) for plan in self.plans.values()}
        if len(of) != 1:
            raise PlanError(
                f"Outcomes share a budget if they have tasks, relation and delta in common. Got {of}."
            )
        if any(plan.trust.at_home or plan.unit != Unit.task() for plan in self.plans.values()):
            raise PlanError(
                "Outcomes share a budget where a curator is trusted, and tasks are the unit. Fit each "
                "outcome by itself for another trust or unit."
            )
        noisy = [plan.mechanism for plan in self.plans.values() if plan.has_rounds]
        noises = {(mechanism.kind, mechanism.doubts) for mechanism in noisy}
        if len(noises) > 1:
            kinds = " and ".join(sorted(kind for kind, _ in noises))
            raise PlanError(f"Outcomes share a budget if their noise is of one kind. Got {kinds}.")

    @classmethod
    def sharing(
        cls, plans: Mapping[str, Plan], epsilon: float, shares: Mapping[str, float] | None = None
    ) -> Outcomes:
        """Give each plan its share of one epsilon for all, by default the same.

        Parameters
        ----------
        plans : mapping of str to Plan
            One for each outcome, with any noise.
        epsilon : float
            What all of them may cost together; infinity leaves them without noise.
        shares : mapping of str to float, optional
            How much of the squared budget each outcome gets, up to a common factor.

        Examples
        --------
        >>> from cloister.algorithms import SharedPrior
        >>> from cloister.learners import Classification, Regression
        >>> plans = {"score": SharedPrior(Regression(4)), "passed": SharedPrior(Classification(4))}
        >>> plans = {name: Plan(algorithm, n_tasks=200) for name, algorithm in plans.items()}
        >>> both = Outcomes.sharing(plans, epsilon=1.0, shares={"score": 2, "passed": 1})
        >>> 0.999 < both.guarantee.epsilon <= 1.0
        True
        >>> [round(plan.mechanism.budget ** 2, 3) for plan in both.plans.values()]
        [0.082, 0.041]
        """
        given = dict.fromkeys(plans, 1.0) if shares is None else dict(shares)
        if given.keys() != plans.keys() or not all(0 < share < math.inf for share in given.values()):
            raise InputError(
                f"shares must have one number > 0 for each of {', '.join(plans)}. Got {given}. Leave them "
                "out for equal ones."
            )
        if math.isinf(epsilon):
            return cls(dict(plans))
        total, first = math.fsum(given.values()), next(iter(plans.values()))
        assert first.delta is not None

        def scaled(mu: float) -> dict[str, Plan]:
            parts = {name: mu * math.sqrt(given[name] / total) for name in plans}
            return {
                name: replace(plan, mechanism=plan.mechanism.scaled(parts[name])) if plan.has_rounds else plan
                for name, plan in plans.items()
            }

        def cost_of(mu: float) -> Cost:
            return cls(scaled(mu)).cost_under(first.relation)

        return cls(scaled(accounting.calibrate(cost_of, epsilon, first.delta)))

    def cost_under(self, relation: Relation) -> Cost:
        """Return what one task is exposed to over all runs."""
        return cost_together([plan for plan in self.plans.values() if plan.has_rounds], relation)

    @cached_property
    def guarantee(self) -> Guarantee:
        """What all runs promise together, known before data is touched."""
        first = next(
            (plan for plan in self.plans.values() if plan.has_rounds), next(iter(self.plans.values()))
        )
        return self.guarantee_with(first.noise_from(Origin.SYSTEM))

    def guarantee_on(self, boards: Mapping[str, Billboard]) -> Guarantee:
        """Return what is promised of runs that have these boards, whose noise must be of one kind."""
        made = {plan.noise_on(boards[name]) for name, plan in self.plans.items() if plan.has_rounds}
        if len(made) > 1:
            raise InputError("the runs have different kinds of noise.")
        return self.guarantee_with(made.pop()) if made else self.guarantee

    def guarantee_with(self, made: NoiseMade) -> Guarantee:
        """Return what is promised of runs whose noise is made in this way."""
        return guarantee_together(list(self.plans.values()), made, THESE_OUTCOMES)

    def check_room(
        self, ledger: Ledger | None, done: Mapping[str, bool], drafts: Mapping[str, Path] | None = None
    ) -> None:
        """Refuse, before anything is charged, what does not fit into an account as a whole.

        Runs that are `done` are not charged again, nor are unfinished ones in their `drafts` that have been.
        """
        if ledger is None:
            return
        paid = {(charge.run, charge.plan) for charge in ledger.history}
        left = [
            plan
            for name, plan in self.plans.items()
            if plan.has_rounds and not done.get(name)
            if drafts is None or not paid & _going_on(drafts[name], plan)
        ]
        if not left:
            return
        room = ledger.balance.room_for(cost_together(left, ledger.relation))
        if room.runs == 0:
            raise BudgetError(f"All outcomes together do not fit. {room}")

    def place(self, folder: Path, name: str) -> Path:
        """Return the folder of one outcome's run."""
        return folder / names_of_files(name)[0].removesuffix(".json")

    def save(
        self, folder: Path, guarantee: Guarantee, naming: Naming, heads: Mapping[str, str] | None = None
    ) -> None:
        """Write what all runs promise together, and which folder is whose; all of it public.

        `heads` are those of the boards when all runs are complete: then it is of these runs and no others.
        """
        document = {
            "format": FORMAT,
            "outcomes": {name: self.place(folder, name).name for name in self.plans},
            "plans": {name: plan.fingerprint for name, plan in self.plans.items()},
            "heads": dict(heads or {}),
            "guarantee": guarantee.to_dict(),
        }
        write_file(folder / PLACE, json.dumps(document, indent=1).encode())
        write_file(folder / "guarantee.txt", f"{guarantee.statement.in_words(naming.words)}\n".encode())

    def begun(self, folder: Path) -> dict[str, bool]:
        """Say which outcomes' runs are complete in a folder; refuse one of other plans."""
        if read_outcomes(folder, "plans") != {name: plan.fingerprint for name, plan in self.plans.items()}:
            raise InputError(
                f"{folder} has outcomes by other plans. Give the same settings, name another folder, or add "
                "--force."
            )
        _ = runs_in(folder)  # all that are there are of these plans
        return {name: (self.place(folder, name) / "head.txt").is_file() for name in self.plans}


def _going_on(draft: Path, plan: Plan) -> set[tuple[str, str]]:
    """Return the key of the run that goes on in a draft if its plan is run, with the plan's fingerprint."""
    begun = (Secret.read(draft / part) for part in ("secret", "complete"))
    return {(each.run, plan.fingerprint) for each in begun if each is not None}


def has_outcomes(folder: Path) -> bool:
    """Say whether a folder has the runs of several outcomes."""
    return (folder / PLACE).is_file()


def outcome_folders(folder: Path) -> dict[str, Path]:
    """Return where the run of each outcome is."""
    return {name: folder / place for name, place in read_outcomes(folder, "outcomes").items()}


def heads_in(folder: Path) -> dict[str, str]:
    """Return the head of the board of every outcome's run."""
    places = outcome_folders(folder)
    return {name: Billboard.load(place / "board").head.hex() for name, place in places.items()}


def runs_in(folder: Path) -> dict[str, Path]:
    """Return the folders of all runs of a place: those of its outcomes, or its own, without a name.

    An outcome's run is refused if it is not the one that what all promise together was written for.
    """
    if not has_outcomes(folder):
        return {"": folder}
    places, plans = outcome_folders(folder), read_outcomes(folder, "plans")
    heads = read_outcomes(folder, "heads")
    for name, place in places.items():
        if not (place / "board").is_file():
            continue
        board = Billboard.load(place / "board")
        if board.plan != plans.get(name) or board.head.hex() != heads.get(name, board.head.hex()):
            raise InputError(
                f"{place} is another run than {folder / PLACE} and guarantee.txt beside it are of. Fit all "
                f"outcomes anew by --force, or name {place} alone."
            )
    return places


def promised_together(folder: Path) -> Guarantee:
    """Read what a folder of several outcomes says that they promise together."""
    try:
        return Guarantee.from_dict(json.loads((folder / PLACE).read_text(encoding="utf-8"))["guarantee"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{folder / PLACE} must have the guarantee of all outcomes. Restore it.") from None


def one_of(folder: Path, types: Iterable[object] | None = None) -> OneOf | None:
    """Return what a run promises together with the outcomes beside it; None of one that stands alone.

    With types it is computed from all plans that are beside it. It is as promised while some are missing or
    are written; of a folder that was taken away from the others, as its own guarantee says.
    """
    whole = folder.resolve()
    home = whole.parent
    own = {place.name: place for place in outcome_folders(home).values()} if has_outcomes(home) else {}
    if not any(whole.name == name or whole.name.startswith(f".{name}.") for name in own):
        return _said_alone(whole)
    told = promised_together(home)
    if types is not None:
        given = list(types)
        with suppress(OSError, CloisterError):  # the others may not be there yet
            told = Outcomes({name: Plan.load(own[name] / "plan.toml", given) for name in own}).guarantee
    return told.shared_by(len(own))


def _said_alone(folder: Path) -> OneOf | None:
    try:
        document = json.loads((folder / "guarantee.json").read_text(encoding="utf-8"))
        return OneOf.from_dict(document["one_of"]) if "one_of" in document else None
    except (OSError, ValueError, TypeError, RecursionError):
        return None  # of an earlier version, or one that `cloister verify` refuses


def read_outcomes(folder: Path, part: str) -> dict[str, str]:
    """Return one word for each outcome from the file that names them."""
    path = folder / PLACE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        check_format(document.get("format"), FORMAT, path)
        known = {"heads": {}} | document  # which was not always written
        found = {str(name): str(word) for name, word in known[part].items()}
        short = all(len(word.encode()) < 256 for word in found.values())
        named = short and all(word not in ("", "..") and Path(word).name == word for word in found.values())
        if named and (found or part == "heads"):
            return found
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise InputError(f"{path} must name the outcomes and their folders. Restore it.")
