"""Figure 2: training loss and price against rounds.

The run of each panel as published: Poisson sampling of half of the tasks, noise of σ on the mean of the
sampled tasks' clipped updates (0.01, at a clip of 0.4 for digits and 0.2 for FEMNIST): 20 rounds, and on a
card the paper's thousand, once. The loss is the mean over tasks of their own models' on their own
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
from papers.pmtl.writers import LOCAL, SETS, TITLES, chosen, engine, network, own, split

DATA = ("celeba", "stackoverflow")
NOT_COVERED = "StackOverflow and CelebA, unless you have them (`--data celeba=DIR`)."
#: Rounds of a look; of writers a card also runs the paper's, with one seed.
FEW = 20
READINGS = ("zero_out, hidden", "replace, visible")


def cells(options: Options) -> list[Cell]:
    found: list[Cell] = [
        {"data": data, "seed": seed, "rounds": SETS[data].panel.rounds if own(options) else FEW}
        for seed in options.replications(full=5, quick=1)
        for data in chosen(options)
    ]
    if options.device != "cpu" and not options.quick and not own(options):
        found += [{"data": data, "seed": 0, "rounds": SETS[data].panel.rounds} for data in chosen(options)]
    return [cell | {"quick": options.quick} for cell in found]


def measure(cell: Cell, options: Options) -> Any:
    """Return rounds, training losses and prices by reading."""
    train, _ = split(cell["data"], cell["seed"], cell["quick"], options)
    panel = SETS[cell["data"]].panel
    share = len(train) / panel.n_tasks
    rounds = 4 if cell["quick"] else cell["rounds"]
    panel = replace(
        panel, n_tasks=len(train), per_round=max(1, round(share * panel.per_round)), rounds=rounds
    )
    plan = panel.plan(network(cell["data"], cell["seed"], train), LOCAL)
    found = figure_2(plan, train, points=6, seed=cell["seed"], engine=engine(options.device))
    prices = {name: [digits(value) for value in found.epsilon[name]] for name in READINGS}
    return {"rounds": found.rounds.tolist(), "loss": [digits(value) for value in found.loss], "price": prices}


def summarise(found: Found) -> Data:
    data: Data = {}
    for (name, rounds), values in by(found, "data", "rounds").items():
        losses = [mean([value["loss"][at] for value in values]) for at in range(len(values[0]["rounds"]))]
        data[f"{name}, {rounds}"] = {
            "title": f"{TITLES[name]}, {len(values)} seed{'s' * (len(values) > 1)}",
            "rounds": values[0]["rounds"],
            "loss": losses,
            "price": values[0]["price"],
        }
    return data


def table(data: Data) -> list[Row]:
    rows: list[Row] = []
    for one in data.values():
        for at, rounds in enumerate(one["rounds"]):
            counted, true = (f"ε = {one['price'][reading][at]:.3g}" for reading in READINGS)
            label = f"{one['title']}, after {rounds} rounds: loss {say(one['loss'][at], '.3g')}"
            rows.append((label, "", counted, true, ""))
    return rows


def draw(data: Data, figure: Any) -> None:
    figure.set_size_inches(4.2 * min(2, len(data)), 3.2 * -(-len(data) // 2))
    panels = figure.subplots(-(-len(data) // 2), min(2, len(data)), squeeze=False).ravel()
    for axes, one in zip(panels, data.values(), strict=False):
        curve(axes, one["rounds"], one["loss"], "training loss", "other")
        axes.set(title=one["title"], xlabel="rounds", ylabel="training loss", ylim=(0, None))
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
    left = {name: one["loss"][-1][0] / one["loss"][0][0] for name, one in named(data).items()}
    told = ", ".join(f"{name} to {100 * value:.2g} %" for name, value in left.items())

    def slowly(reading: str) -> Outcome:
        growth = {name: _growth(one["rounds"], one["price"][reading]) for name, one in named(data).items()}
        said = ", ".join(f"{name}: rounds to the {power:.2f}" for name, power in growth.items())
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


def named(data: Data) -> dict[str, Data]:
    """Return the runs by what claims call them."""
    return {f"{TITLES[key.split(', ')[0]]} ({key.split(', ')[1]} rounds)": one for key, one in data.items()}


def _growth(rounds: list[int], prices: list[float]) -> float:
    """Return the power of the rounds that prices grow like, over the second half."""
    half = len(rounds) // 2
    return float(np.polyfit(np.log(rounds[half:]), np.log(prices[half:]), 1)[0])


def finding(data: Data) -> str:
    prices = {name: [one["price"][reading][-1] for reading in READINGS] for name, one in named(data).items()}
    said = "; ".join(f"{name} {counted:.2g}, and {true:.2g}" for name, (counted, true) in prices.items())
    return (
        "Losses fall as shown. The price, as the paper counts and by its own definition (any data in place "
        f"of a task's, and all others colluding): {said}."
    )
