"""Theorems 1 and 2, and the prices of Figure 2: what the published noise costs, round by round.

The three published settings over all their rounds (FEMNIST: 205 tasks, a hundred in a round, a thousand
rounds; other numbers of tasks are the published version's) at δ = 1/m: as the paper's code counts (moments
of hidden Poisson samples, one task added or removed), exactly for that reading, and by the paper's own
definition (any data in a task's place, all others colluding). Below are the true prices of the noise of
Theorem 1 for q = m, σ = 4γ√(T log 1/δ)/(mε).
"""

from __future__ import annotations

import math
from typing import Any

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from torch import nn

from cloister.learners import Descent, Module
from cloister.privacy import tradeoff
from papers.figure import Cell, Claim, Data, Found, Options, Row, digits, judge
from papers.pictures import COLOURS, legend
from papers.pmtl.runs import CELEBA, FEMNIST, STACK_OVERFLOW, epsilon_over_rounds

NOT_COVERED = (
    "c₁ and c₂, which are not printed: for q < m there is no formula to test. The axis of the picture cannot "
    "be read in the text of the paper."
)
PANELS = {"StackOverflow": STACK_OVERFLOW, "FEMNIST": FEMNIST, "CelebA": CELEBA}
READINGS = {
    "code": "as the code counts",
    "zero_out, hidden": "the same, exactly",
    "replace, visible": "its definition",
}
CLAIMED, DELTAS, POINTS = (0.1, 1.0, 4.0, 10.0, 30.0, 100.0, 300.0), (1 / 205, 1e-5), 5


def cells(options: Options) -> list[Cell]:
    prices = [{"panel": name} for name in (["FEMNIST"] if options.quick else PANELS)]
    return [*prices, *({"epsilon": epsilon, "delta": delta} for delta in DELTAS for epsilon in CLAIMED)]


def measure(cell: Cell, options: Options) -> Any:
    """Return the prices of a panel by reading, at some rounds; or the true price of Theorem 1's noise."""
    if "panel" not in cell:
        stated = cell["epsilon"] / (2 * math.sqrt(math.log(1 / cell["delta"])))
        return tradeoff.epsilon(stated, cell["delta"])
    panel = PANELS[cell["panel"]]
    rounds = [panel.rounds * point // POINTS for point in range(1, POINTS + 1)]
    plan = panel.plan(Module(nn.Linear(2, 2)), Descent(lr=0.1))
    found = {name: values.tolist() for name, values in epsilon_over_rounds(plan, rounds).items()}
    event = PoissonSampledDpEvent(panel.per_round / panel.n_tasks, GaussianDpEvent(panel.multiplier))
    found["code"] = []
    for count in rounds:
        accountant = RdpAccountant()
        accountant.compose(SelfComposedDpEvent(event, count))
        found["code"].append(accountant.get_epsilon(1 / panel.n_tasks))
    return {"rounds": rounds, "prices": {name: found[name] for name in READINGS}}


def summarise(found: Found) -> Data:
    data: Data = {"claimed": list(CLAIMED)}
    for cell, value in found:
        if "panel" in cell:
            prices = {name: [digits(v, 4) for v in values] for name, values in value["prices"].items()}
            data[cell["panel"]] = {"rounds": value["rounds"], **prices}
        else:
            data.setdefault(f"{cell['delta']:.3g}", []).append(digits(value, 4))
    return data


def table(data: Data) -> list[Row]:
    rows: list[Row] = []
    for name in [name for name in PANELS if name in data]:
        one = data[name]
        for at, rounds in enumerate(one["rounds"]):
            code, exact, true = (f"ε = {one[reading][at]:.3g}" for reading in READINGS)
            rows.append((f"{name}, {rounds} rounds", "", f"{code}; exactly {exact}", true, ""))
    for delta in DELTAS:
        for claimed, true in zip(data["claimed"], data[f"{delta:.3g}"], strict=True):
            label = f"Theorem 1's noise, q = m, δ = {delta:.3g}"
            rows.append((label, "", f"ε = {claimed:g}", f"ε = {true:.3g}", ""))
    return rows


def draw(data: Data, figure: Any) -> None:
    names = [name for name in PANELS if name in data]
    figure.set_size_inches(8.0, 3.2)
    whose = {
        "code": ("paper", "-o"),
        "zero_out, hidden": ("paper", ":x"),
        "replace, visible": ("repaired", "-o"),
    }
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for reading, (colour, style) in whose.items():
            label = READINGS[reading]
            axes.plot(data[name]["rounds"], data[name][reading], style, color=COLOURS[colour], label=label)
        axes.set(title=name, xlabel="rounds", ylabel="ε at δ = 1/m", ylim=(0, None))
    legend(figure, 3)


def claims(data: Data) -> list[Claim]:
    names = [name for name in PANELS if name in data]
    ends = {reading: [data[name][reading][-1] for name in names] for reading in READINGS}
    told = {
        reading: ", ".join(f"{name} {end:.3g}" for name, end in zip(names, ends[reading], strict=True))
        for reading in READINGS
    }
    places = [
        (claimed, true)
        for delta in DELTAS
        for claimed, true in zip(data["claimed"], data[f"{delta:.3g}"], strict=True)
    ]
    broken = sorted({claimed for claimed, true in places if true > claimed})
    said = f"in {sum(true <= claimed for claimed, true in places)} of {len(places)} places"
    return [
        Claim(
            "do the runs of Figure 2 cost at most ε = 16? (its axis cannot be read)",
            "",
            judge([end <= 16 for end in ends["code"]], told["code"]),
            judge([end <= 16 for end in ends["replace, visible"]], told["replace, visible"]),
            asked=True,
        ),
        Claim(
            "Theorem 1: with q = m and σ = 4γ√(T log 1/δ)/(mε) T rounds are (ε, δ)-private, for any ε",
            "",
            None,
            judge(
                [true <= claimed for claimed, true in places],
                said + (f"; false from ε = {broken[0]:g} on" if broken else ""),
            ),
        ),
    ]


def finding(data: Data) -> str:
    one = data["FEMNIST"]
    return (
        f"FEMNIST's thousand rounds cost {one['code'][-1]:.3g} as the code counts, and "
        f"{one['replace, visible'][-1]:.3g} by the paper's own definition. Theorem 1's noise for q = m is "
        "more than is needed at small ε, and less than is needed far above 2 log 1/δ."
    )
