"""Figure 2: training loss and price against rounds.

The run of each panel as published: Poisson sampling of half of the tasks, increments divided by the tasks in
a round, noise of σ on their mean (0.01, at a clip of 0.4 for digits and 0.2 for FEMNIST): 20 rounds, and on a
card the paper's thousand, once. "With the true guarantee" tasks say offsets, whose limit is right, with the
same noise. The loss is the mean over tasks of their own models' on their own training images; the price at
δ = 1/m is shown as the paper counts it and by its definition. With ``--data celeba=DIR`` or
``stackoverflow=DIR`` the run is that of the paper's panel, scaled to the tasks in DIR
(`papers.pmtl.writers` says what is in it).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cloister.algorithms import Increment, Offset
from papers.figure import Cell, Claim, Data, Found, Options, Outcome, Row, by, digits, judge, mean, say
from papers.pictures import COLOURS, curve, legend
from papers.pmtl.runs import figure_2
from papers.pmtl.writers import LOCAL, SETS, TITLES, chosen, engine, network, own, split

DATA = ("celeba", "stackoverflow")
NOT_COVERED = (
    "StackOverflow and CelebA, unless you have them (`--data celeba=DIR`); more than one seed of a thousand "
    "rounds."
)
#: Rounds of a look; of writers a card also runs the paper's, with one seed.
FEW = 20
READINGS = ("zero_out, hidden", "replace, visible")
#: What is said in a round: as printed, and with the limit that is meant.
MESSAGES = {"published": Increment(share=1.0), "true": Offset()}


def cells(options: Options) -> list[Cell]:
    few = 4 if options.quick else FEW
    runs = [
        (data, SETS[data].panel.rounds if own(options) and not options.quick else few, seed)
        for seed in options.replications(full=5, quick=1)
        for data in chosen(options)
    ]
    if options.device != "cpu" and not options.quick and not own(options):
        runs += [(data, SETS[data].panel.rounds, 0) for data in chosen(options)]
    return [
        {"data": data, "rounds": rounds, "message": message, "seed": seed, "quick": options.quick}
        for data, rounds, seed in runs
        for message in MESSAGES
    ]


def measure(cell: Cell, options: Options) -> Any:
    """Return rounds, training losses and prices by reading."""
    train, _ = split(cell["data"], cell["seed"], cell["quick"], options)
    panel = SETS[cell["data"]].panel
    sampled = max(1, round(len(train) / panel.n_tasks * panel.per_round))
    panel = replace(panel, n_tasks=len(train), per_round=sampled, rounds=cell["rounds"])
    learner = network(cell["data"], cell["seed"], train)
    plan = panel.plan(learner, LOCAL, message=MESSAGES[cell["message"]])
    found = figure_2(plan, train, points=6, seed=cell["seed"], engine=engine(options.device))
    prices = {name: [digits(value) for value in found.epsilon[name]] for name in READINGS}
    return {"rounds": found.rounds.tolist(), "loss": [digits(value) for value in found.loss], "price": prices}


def summarise(found: Found) -> Data:
    """Return losses by message, over the seeds that it was run with, and prices, which no seed moves."""
    data: Data = {}
    for (name, rounds, message), values in by(found, "data", "rounds", "message").items():
        first = values[0]
        start = {"rounds": first["rounds"], "price": first["price"], "loss": {}, "seeds": {}}
        one = data.setdefault(f"{name}, {rounds}", start)
        one["loss"][message] = [mean(column) for column in zip(*(v["loss"] for v in values), strict=True)]
        one["seeds"][message] = len(values)
    return data


def table(data: Data) -> list[Row]:
    rows: list[Row] = []
    for name, one in named(data).items():
        for at, rounds in enumerate(one["rounds"]):
            published, true = (
                f"loss {say(one['loss'][message][at], '.3g')} at ε = {one['price'][reading][at]:.3g}"
                for message, reading in zip(MESSAGES, READINGS, strict=True)
            )
            seeds = one["seeds"]["true"]
            label = f"{name}, {seeds} seed{'s' * (seeds > 1)}, after {rounds} rounds"
            rows.append((label, "", published, true, ""))
    return rows


def draw(data: Data, figure: Any) -> None:
    columns = min(2, len(data))
    figure.set_size_inches(4.2 * columns, 3.2 * -(-len(data) // columns))
    panels = figure.subplots(-(-len(data) // columns), columns, squeeze=False).ravel()
    for axes, (name, one) in zip(panels, named(data).items(), strict=False):
        price = axes.twinx()
        for message, reading, whose in zip(MESSAGES, READINGS, ("paper", "repaired"), strict=True):
            how = "as printed" if message == "published" else "offsets"
            curve(axes, one["rounds"], one["loss"][message], f"training loss, {how}", whose)
            counted = "as the paper counts" if message == "published" else "by its definition"
            price.plot(one["rounds"], one["price"][reading], "--", color=COLOURS[whose], label=f"ε {counted}")
        axes.set(title=name, xlabel="rounds", ylabel="training loss", yscale="log")
        price.set_ylim(0, None)
        price.grid(visible=False)
        price.set_ylabel("ε")
    legend(figure, 4)


def claims(data: Data) -> list[Claim]:
    there = named(data)

    def quickly(message: str, reading: str) -> Outcome:
        most = max(one["rounds"][-1] for one in there.values())  # it is about whole runs
        run = {name: one for name, one in there.items() if one["rounds"][-1] == most}
        shares = {name: half_price(one, message, reading) for name, one in run.items()}
        said = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())
        return judge([share > 0.75 for share in shares.values()], said)

    def slowly(reading: str) -> Outcome:
        growth = {name: _growth(one["rounds"], one["price"][reading]) for name, one in there.items()}
        said = ", ".join(f"{name}: rounds to the {power:.2f}" for name, power in growth.items())
        return judge([power < 0.75 for power in growth.values()], said)

    return [
        Claim(
            "Section 5.2: it converges quickly for its price (three quarters of the fall of the loss have "
            "cost half of ε)",
            "",
            *(quickly(message, reading) for message, reading in zip(MESSAGES, READINGS, strict=True)),
        ),
        Claim(
            "Fig. 2: ε grows slower with rounds as they go on, nearly like their root (below the power 0.75)",
            "",
            slowly(READINGS[0]),
            slowly(READINGS[1]),
        ),
    ]


def half_price(one: Data, message: str, reading: str) -> float:
    """Return the share of the loss's whole fall that is had where half of the last round's ε is spent."""
    losses, prices = [value for value, _ in one["loss"][message]], one["price"][reading]
    at_half = float(np.interp(prices[-1] / 2, prices, losses))
    fall = losses[0] - min(losses)
    return max(0.0, losses[0] - at_half) / fall if fall else 0.0


def named(data: Data) -> dict[str, Data]:
    """Return the runs by what claims call them."""
    return {f"{TITLES[key.split(', ')[0]]} ({key.split(', ')[1]} rounds)": one for key, one in data.items()}


def _growth(rounds: list[int], prices: list[float]) -> float:
    """Return the power of the rounds that prices grow like, over the second half."""
    half = len(rounds) // 2
    return float(np.polyfit(np.log(rounds[half:]), np.log(prices[half:]), 1)[0])


def finding(data: Data) -> str:
    most = max(one["rounds"][-1] for one in data.values())
    told: dict[str, list[str]] = {message: [] for message in MESSAGES}
    for key, one in data.items():
        if one["rounds"][-1] == most:
            for message, reading in zip(MESSAGES, READINGS, strict=True):
                losses, price = one["loss"][message], one["price"][reading][-1]
                ends = f"{losses[0][0]:.2g} to {losses[-1][0]:.2g}"
                told[message].append(f"{ends} on {TITLES[key.split(', ')[0]]} (ε = {price:.2g})")
    published, true = (" and from ".join(texts) for texts in told.values())
    return (
        f"In {most:,} rounds of increments as printed, whose noise adds up, the loss goes from {published}, "
        f"as the paper counts. Of offsets it goes from {true}, by its own definition."
    )
