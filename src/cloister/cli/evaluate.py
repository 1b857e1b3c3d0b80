"""``cloister evaluate``: for how many tasks joining pays, as a number with a price, to publish."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cloister.cli.options import AccountOptions, Data, Delta, Folder, Force, Json, SkipMissingTargets, Types
from cloister.cli.shell import absent, advance, emit, note, positive, say


def evaluate(
    folder: Folder,
    data: Data,
    account: AccountOptions,
    epsilon: Annotated[float, typer.Option(help="Price of the number, on top of the run's.")] = 0.5,
    delta: Delta = None,
    skip: SkipMissingTargets = False,
    types: Types = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File for `cloister report --evaluation`.")
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    r"""Say for how many tasks joining pays, in a number to publish.

    Each task's rows are split, five times. A task counts if its error on the part held out is smaller joined
    than alone; the noisy count over all tasks is released, and costs epsilon on top of the run: every task,
    or every record where the run protects records. DATA is the table of the run. Without a price, for your
    own eyes: `cloister report RUN --data DATA`.

    \b
    For example:
      cloister evaluate exam-run exam.csv --epsilon 0.5
      cloister evaluate exam-run exam.csv --ledger exam.ledger -o paid.json
    """
    from json import dumps

    from cloister.app.folder import read_public
    from cloister.app.gains import measure_gains
    from cloister.app.source import TableFile
    from cloister.core.errors import InputError
    from cloister.evaluation.scores import ScorePrice, release_share
    from cloister.privacy.statement import percent, rounded_up

    positive("--epsilon", epsilon)
    file = None if output is None else absent(output, force)
    run, ledger = read_public(folder, types or ()), account.open()
    if not run.guarantee.holds:
        why = "; ".join(run.guarantee.reasons) or "there is no noise"
        raise InputError(
            f"The guarantee of {folder} does not hold ({why}): no number of it is to be published."
        )
    if ledger is None and run.record.account:
        note(
            f"The run was charged to the account {run.record.account!r}, and this is not: name its --ledger."
        )
    groups = None if run.settings.groups is None else str(run.settings.groups)
    tasks = TableFile(data, run.codebook, groups, skip, note).tasks()
    if len(tasks) != run.plan.n_tasks:
        raise InputError(
            f"{data.name} must have the rows of the run's {run.plan.n_tasks} tasks. Got {len(tasks)} tasks. "
            "Name the table of the run."
        )
    with advance("Splits") as progress:
        gains = measure_gains(run, tasks, progress)
    unit, naming = run.plan.guarantee.unit, run.codebook.naming
    told = release_share(run, gains.changes < 0, ScorePrice(epsilon, delta, ledger=ledger))
    document = {
        "share": told.value,
        "noise": told.noise,
        "plan": run.plan.fingerprint,
        "board": run.board.head.hex(),
        "guarantee": told.guarantee.to_dict(),
    }
    if file is not None:
        file.write_text(dumps(document, indent=1) + "\n", encoding="utf-8")
    if json:
        return emit(document | ({} if file is None else {"file": file}))
    return say(
        f"Joining pays for {100 * told.value:.0f} % of the {naming.tasks(run.plan.n_tasks)}; the noise in "
        f"that has a standard deviation of {100 * told.noise:.1f} points. Rows that were in the run have "
        "moved the board a little, which flatters joining slightly.",
        f"It may be published. It cost every {unit} epsilon {rounded_up(told.guarantee.epsilon)} at delta "
        f"{rounded_up(told.guarantee.delta)} on top of the run: a test with 5 % false alarms detects a "
        f"{unit}'s data from this number alone in at most {percent(told.guarantee.detection())} of cases.",
        *([] if ledger is None else [f"{ledger.balance.all_runs}."]),
        *([] if file is None else [f"Wrote {file}, for `cloister report --evaluation`."]),
        apart=True,
    )
