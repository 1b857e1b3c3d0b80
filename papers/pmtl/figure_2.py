"""Figure 2: training loss and price against rounds.

The run of each panel as published: Poisson sampling of half of the tasks, noise of σ on the mean of the
sampled tasks' clipped updates (0.01, at a clip of 0.4 for digits and 0.2 for FEMNIST). Rounds are fewer
than the paper's thousand, as writers are. The loss is the mean over tasks of their own models' on their own
training images; the price of so many rounds at δ = 1/m is shown as the paper counts it and as its
definition has it. Messages are offsets: printed increments have the wrong limit, at the same price. With
``--data celeba=DIR`` or ``stackoverflow=DIR`` the run is that of the paper's panel, scaled to the tasks in
DIR (`papers.pmtl.writers` says what is in it).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from papers.figure import Cell, Claim, Data, Found, Options, Outcome, Row, by, digits, judge, mean, say
from papers.pictures import COLOURS, curve, legend
from papers.pmtl.runs import figure_2
from papers.pmtl.writers import LOCAL, SETS, TITLES, chosen, engine, network, split

DATA = ("celeba", "stackoverflow")
NOT_COVERED = (
    "StackOverflow and CelebA, unless you have them (`--data celeba=DIR`), and the paper's thousand "
    "rounds: they are "
    "priced in `pmtl-theorem-1`, and 20 are run."
)
READINGS = ("zero_out, hidden", "replace, visible")


def cells(options: Options) -> list[Cell]:
    return [
        {"data": data, "seed": seed, "quick": options.quick}
        for seed in options.replications(full=5, quick=1)
        for data in chosen(options)
    ]


def measure(cell: Cell, options: Options) -> Any:
    """Return rounds, training losses and prices by reading."""
    train, _ = split(cell["data"], cell["seed"], cell["quick"], options)
    panel = SETS[cell["data"]].panel
    share = len(train) / panel.n_tasks
    panel = replace(panel, n_tasks=len(train), per_round=max(1, round(share * panel.per_round)))
    panel = replace(panel, rounds=4) if cell["quick"] else panel
    plan = panel.plan(network(cell["data"], cell["seed"], train), LOCAL)
    found = figure_2(plan, train, points=6, seed=cell["seed"], engine=engine(options.device))
    prices = {name: [digits(value) for value in found.epsilon[name]] for name in READINGS}
    return {"rounds": found.rounds.tolist(), "loss": [digits(value) for value in found.loss], "price": prices}


def summarise(found: Found) -> Data:
    data: Data = {}
    for (name,), values in by(found, "data").items():
        losses = [mean([value["loss"][at] for value in values]) for at in range(len(values[0]["rounds"]))]
        data[name] = {"rounds": values[0]["rounds"], "loss": losses, "price": values[0]["price"]}
        data[name]["seeds"] = len(values)
    return data


def table(data: Data) -> list[Row]:
    rows: list[Row] = []
    for name in shown(data):
        one = data[name]
        seeds = f"{one['seeds']} seed{'s' * (one['seeds'] > 1)}"
        for at, rounds in enumerate(one["rounds"]):
            counted, true = (f"ε = {one['price'][reading][at]:.3g}" for reading in READINGS)
            label = f"{TITLES[name]} ({seeds}), after {rounds} rounds: loss {say(one['loss'][at], '.3f')}"
            rows.append((label, "", counted, true, ""))
    return rows


def shown(data: Data) -> list[str]:
    """Return the data sets that were run."""
    return [name for name in TITLES if name in data]


def draw(data: Data, figure: Any) -> None:
    names = shown(data)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        one, title = data[name], TITLES[name]
        curve(axes, one["rounds"], one["loss"], "training loss", "other")
        axes.set(title=title, xlabel="rounds", ylabel="training loss", ylim=(0, None))
        price = axes.twinx()
        price.plot(
            one["rounds"],
            one["price"][READINGS[0]],
            "--",
            color=COLOURS["paper"],
            label="ε as the paper counts",
        )
        price.plot(
            one["rounds"],
            one["price"][READINGS[1]],
            "-",
            color=COLOURS["repaired"],
            label="ε by its definition",
        )
        price.set_ylim(0, None)
        price.grid(visible=False)
        price.set_ylabel("ε")
    legend(figure)


def claims(data: Data) -> list[Claim]:
    names = shown(data)
    left = {name: data[name]["loss"][-1][0] / data[name]["loss"][0][0] for name in names}
    told = ", ".join(f"{TITLES[name]} to {100 * value:.0f} %" for name, value in left.items())

    def slowly(reading: str) -> Outcome:
        growth = {name: _growth(data[name]["rounds"], data[name]["price"][reading]) for name in names}
        said = ", ".join(f"{TITLES[name]}: rounds to the {power:.2f}" for name, power in growth.items())
        return judge([power < 0.75 for power in growth.values()], said)

    return [
        Claim(
            "Fig. 2: the training loss falls fast (to less than 70 % here)",
            "",
            judge([value < 0.7 for value in left.values()], told),
        ),
        Claim(
            "Fig. 2: ε grows slowly, like the root of the rounds",
            "",
            slowly(READINGS[0]),
            slowly(READINGS[1]),
        ),
    ]


def _growth(rounds: list[int], prices: list[float]) -> float:
    """Return the power of the rounds that prices grow like, over the second half."""
    half = len(rounds) // 2
    return float(np.polyfit(np.log(rounds[half:]), np.log(prices[half:]), 1)[0])


def finding(data: Data) -> str:
    prices = [data[name]["price"] for name in shown(data)]
    counted, true = (", ".join(f"{price[reading][-1]:.2g}" for price in prices) for reading in READINGS)
    return (
        f"Losses fall as shown. The price of these rounds is {counted} as the paper counts, and {true} by "
        "its own "
        "definition: any data in place of a task's, and all others colluding."
    )
