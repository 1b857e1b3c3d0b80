"""Figure 2: training loss and price against rounds.

The run of each panel as published: Poisson sampling of half of the tasks, noise of σ on the mean of the
sampled tasks' clipped updates (0.01, at a clip of 0.4 for digits and 0.2 for FEMNIST). Rounds are fewer
than the paper's thousand, as writers are. The loss is the mean over tasks of their own models' on their own
training images; the price of so many rounds at δ = 1/m is shown as the paper counts it and as its
definition has it. The paper's full setting for FEMNIST (205 tasks, a hundred in a round, a thousand rounds)
is priced beside it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from papers.figure import Cell, Data, Finding, Found, Options, Row, Verdict, by, digits, mean, say
from papers.pictures import COLOURS, curve, legend
from papers.pmtl.runs import FEMNIST, epsilon_over_rounds, figure_2
from papers.pmtl.writers import LOCAL, SETS, TITLES, engine, network, require_data, split

CLAIM = "Losses fall quickly while ε grows slowly: to about 14 after a thousand rounds on FEMNIST."
READINGS = ("zero_out, hidden", "replace, visible")


def cells(options: Options) -> list[Cell]:
    require_data()
    drawn = [
        {"data": data, "seed": seed, "quick": options.quick}
        for seed in options.replications(full=5, quick=1)
        for data in SETS
    ]
    return [*drawn, {"data": "priced", "quick": options.quick}]


def measure(cell: Cell, options: Options) -> Any:
    """Return rounds, training losses and prices by reading; or prices of the full setting."""
    if cell["data"] == "priced":
        plan = FEMNIST.plan(network("femnist", 0), LOCAL)
        return {
            name: float(values[-1]) for name, values in epsilon_over_rounds(plan, [FEMNIST.rounds]).items()
        }
    train, _ = split(cell["data"], cell["seed"], cell["quick"])
    panel = SETS[cell["data"]].panel
    share = len(train) / panel.n_tasks
    panel = replace(panel, n_tasks=len(train), per_round=round(share * panel.per_round))
    panel = replace(panel, rounds=4) if cell["quick"] else panel
    plan = panel.plan(network(cell["data"], cell["seed"]), LOCAL)
    found = figure_2(plan, train, points=6, seed=cell["seed"], engine=engine(options.device))
    prices = {name: [digits(value) for value in found.epsilon[name]] for name in READINGS}
    return {"rounds": found.rounds.tolist(), "loss": [digits(value) for value in found.loss], "price": prices}


def summarise(found: Found) -> Data:
    data: Data = {}
    for (name,), values in by(found, "data").items():
        if name == "priced":
            data["the paper's FEMNIST"] = {reading: digits(value, 3) for reading, value in values[0].items()}
            continue
        losses = [mean([value["loss"][at] for value in values]) for at in range(len(values[0]["rounds"]))]
        data[name] = {"rounds": values[0]["rounds"], "loss": losses, "price": values[0]["price"]}
        data[name]["seeds"] = len(values)
    return data


def table(data: Data) -> list[Row]:
    full = data["the paper's FEMNIST"]
    rows: list[Row] = [
        (
            "ε of FEMNIST's thousand rounds",
            "about 14",
            f"{full[READINGS[0]]:.3g}",
            f"{full[READINGS[1]]:.3g}",
            "",
        )
    ]
    for name, title in TITLES.items():
        one = data[name]
        seeds = f"{one['seeds']} seed{'s' * (one['seeds'] > 1)}"
        for at, rounds in enumerate(one["rounds"]):
            counted, true = (f"ε = {one['price'][reading][at]:.3g}" for reading in READINGS)
            rows.append(
                (
                    f"{title} ({seeds}), loss after {rounds} rounds: {say(one['loss'][at], '.3f')}",
                    "",
                    counted,
                    true,
                    "",
                )
            )
    return rows


def draw(data: Data, figure: Any) -> None:
    panels = figure.subplots(1, 2)
    for axes, (name, title) in zip(panels, TITLES.items(), strict=True):
        one = data[name]
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


def finding(data: Data) -> Finding:
    full = data["the paper's FEMNIST"]
    falls = all(data[name]["loss"][-1][0] < 0.7 * data[name]["loss"][0][0] for name in TITLES)
    sentence = (
        f"Losses fall as shown{'' if falls else ' in part only'}; but by the paper's own definition, any "
        "data in "
        f"place of a task's and all others colluding, a thousand rounds on FEMNIST cost ε = "
        f"{full[READINGS[1]]:.0f}, not {full[READINGS[0]]:.0f}."
    )
    return Finding(Verdict.PARTLY, sentence)
