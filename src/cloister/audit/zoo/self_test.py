"""The auditor on trial: it must convict every planted bug, by the right test, and no plan without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cloister.audit.zoo.bug import Bug, Trial, convict, examine


@dataclass(frozen=True)
class SelfTest:
    """What became of bugs, and of their plans without them.

    Parameters
    ----------
    trials : tuple of Trial
        One a bug.
    plans : int
        How many different plans they are planted in.
    wrongly : tuple of str
        Why plans without a bug were convicted; an honest auditor convicts one in a thousand.
    """

    trials: tuple[Trial, ...]
    plans: int
    wrongly: tuple[str, ...]

    @property
    def missed(self) -> tuple[Trial, ...]:
        """Bugs that the test which must convict them does not."""
        return tuple(trial for trial in self.trials if not trial.caught)

    @property
    def passed(self) -> bool:
        return not self.missed and not self.wrongly

    def __str__(self) -> str:
        caught = len(self.trials) - len(self.missed)
        said = [f"{caught} of {len(self.trials)} planted bugs convicted, each by the test that must."]
        acquitted = [trial.bug.name for trial in self.missed if not trial.convicting]
        elsewhere = [trial.bug.name for trial in self.missed if trial.convicting]
        if acquitted:
            said.append(f"ACQUITTED: {', '.join(acquitted)}.")
        if elsewhere:
            said.append(f"CONVICTED BY OTHER TESTS ALONE: {', '.join(elsewhere)}.")
        said.append(f"{self.plans - len(self.wrongly)} of {self.plans} plans without a bug acquitted.")
        said += [f"WRONGLY CONVICTED: {reason}." for reason in self.wrongly]
        return "\n".join(said)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        bugs = [
            {
                "name": trial.bug.name,
                "breaks": trial.bug.breaks,
                "must_be_convicted_by": trial.bug.convicted_by,
                "convicted_by": list(trial.convicting),
                "caught": trial.caught,
            }
            for trial in self.trials
        ]
        return {"passed": self.passed, "bugs": bugs, "plans": self.plans, "wrongly": list(self.wrongly)}


def self_test(
    bugs: Sequence[Bug], seed: int = 0, progress: Callable[[int, int], None] = lambda done, of: None
) -> SelfTest:
    """Audit plans with bugs, then the same plans without.

    Examples
    --------
    >>> from cloister.audit.zoo import zoo
    >>> print(self_test(zoo()[1:2]))
    1 of 1 planted bugs convicted, each by the test that must.
    1 of 1 plans without a bug acquitted.
    """
    plans = list(dict.fromkeys(bug.plan for bug in bugs))
    trials, wrongly = [], []
    for done, bug in enumerate(bugs):
        progress(done, len(bugs) + len(plans))
        trials.append(convict(bug, seed))
    for done, plan in enumerate(plans):
        progress(len(bugs) + done, len(bugs) + len(plans))
        wrongly += ["; ".join(found.reasons) for found in [examine(plan, seed)] if found.convicted]
    progress(len(bugs) + len(plans), len(bugs) + len(plans))
    return SelfTest(tuple(trials), len(plans), tuple(wrongly))
