"""What shared priors lost when the targets of `prior_accuracy` were set: gains are compared like for like.

Learning alone has mostly become better since, so that the same loss is mostly a smaller gain. The figures
here are those that docs/results.md printed at commit e188f36 (they are of the code of 8d046f4, which prints
them again), on the same ten splits. A gain over the learning alone of then is 1 - loss / that loss, in
percent.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from benchmarks import Figures, Table, Targets

__all__ = ["EARLIER", "comparison", "earlier_figures", "earlier_goals"]


@dataclass(frozen=True)
class Earlier:
    """Loss alone, gain in percent at epsilon .5 and 1, and the standard error of the latter."""

    alone: float
    half: float
    one: float
    error: float

    @property
    def loss(self) -> float:
        """The loss at epsilon 1."""
        return self.alone * (1 - self.one / 100)

    def gain(self, losses: list[float]) -> float:
        """Return the gain of these losses over the learning alone of then, in percent."""
        return 100 * (1 - fmean(losses) / self.alone)


EARLIER = {
    "school": Earlier(0.6734, 3.4, 5.4, 0.2),
    "exam": Earlier(0.5766, 3.5, 4.9, 0.4),
    "hsb82": Earlier(0.8232, 4.8, 5.1, 0.3),
    "star": Earlier(0.3348, 5.9, 6.4, 0.1),
    "chem97": Earlier(0.7198, 31.4, 31.6, 0.3),
    "bdf": Earlier(0.5494, 28.6, 35.5, 0.5),
    "scotssec": Earlier(0.6125, 22.0, 23.7, 0.6),
    "verbagg": Earlier(0.5350, 7.7, 8.7, 0.4),
    "chem97_high": Earlier(0.6288, 28.0, 28.2, 0.3),
    "contraception": Earlier(0.6593, 1.3, 3.4, 0.3),
    "landmine": Earlier(0.1876, -0.4, -0.5, 0.1),
}
#: Gain in percent over the learning alone of then that is expected at epsilon .5 and 1.
GAINS = {
    "school": (2.5, 4.0),
    "exam": (3.5, 5.0),
    "hsb82": (4.5, 5.0),
    "star": (4.0, 4.5),
    "chem97": (30.0, 30.0),
    "bdf": (28.0, 32.0),
    "scotssec": (17.0, 19.0),
    "verbagg": (5.0, 6.5),
    "chem97_high": (26.0, 26.0),
}


def earlier_figures(name: str, losses: dict[float, list[float]]) -> Figures:
    """Return gains over the learning alone of then, by epsilon, and how far behind the gain of then it is.

    That is in standard errors of then, at epsilon 1; nothing for a table that was not measured then.
    """
    if name not in EARLIER:
        return {}
    then = EARLIER[name]
    gains = {epsilon: then.gain(values) for epsilon, values in losses.items()}
    behind = (then.one - gains[1.0]) / then.error
    shown = {f"{name}_gain_over_earlier_eps{epsilon:g}": gain for epsilon, gain in gains.items()}
    return shown | {f"{name}_errors_behind_earlier_eps1": behind}


def earlier_goals(names: list[str]) -> Targets:
    """Return what the gains over the learning alone of then should be: as wanted, and no row lower."""
    targets: Targets = {}
    for name in names:
        if name in GAINS:
            half, one = GAINS[name]
            targets[f"{name}_gain_over_earlier_eps1"] = (">=", one)
            targets[f"{name}_gain_over_earlier_eps0.5"] = (">=", half)
        if name in EARLIER:
            targets[f"{name}_errors_behind_earlier_eps1"] = ("<=", 1.0)
    return targets


def comparison(found: dict[str, tuple[str, dict[float, list[float]]]]) -> Table:
    """Return a row a table, from its title and its losses by epsilon (0 is alone), of every split."""
    rows: Table = [
        [
            "data",
            "alone: then",
            "now",
            "loss, ε = 1: then",
            "now",
            "gain % over alone then: then",
            "now",
            "wanted",
            "gain % over alone now",
        ]
    ]
    for name, (title, losses) in found.items():
        if name not in EARLIER:
            continue
        then, alone, one = EARLIER[name], fmean(losses[0.0]), fmean(losses[1.0])
        gain, wanted = then.gain(losses[1.0]), GAINS[name][1] if name in GAINS else None
        missed = gain < max(then.one - then.error, wanted if wanted is not None else gain)
        rows.append(
            [
                title,
                f"{then.alone:.4f}",
                f"{alone:.4f}",
                f"{then.loss:.4f}",
                f"{one:.4f}",
                f"{then.one:.1f} ± {then.error:.1f}",
                f"**{gain:.1f}**" if missed else f"{gain:.1f}",
                "" if wanted is None else f"{wanted:g}",
                f"{100 * (1 - one / alone):.1f}",
            ]
        )
    return rows
