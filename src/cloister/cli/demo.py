"""``cloister demo``: the whole idea on real schools, as a table and as a page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import Force, Json
from cloister.cli.shell import absent, advance, emit, say, show_table
from cloister.core.spelling import counted

if TYPE_CHECKING:
    from cloister.report.comparison import MethodComparison, MethodScores

_SHOWN = (0.5, 1.0, 2.0)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page chem97.html.")] = Path("demo"),
    schools: Annotated[int | None, typer.Option(help="Use so many schools only.")] = None,
    table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Only write the made-up pupils of the guide, as CSV.")
    ] = None,
    splits: Annotated[int, typer.Option(help="How often pupils are split anew.", min=1)] = 5,
    force: Force = False,
    json: Json = False,
) -> None:
    r"""Compare methods on 2410 real schools and write a page.

    Pupils' chemistry scores, England 1997. Each school learns alone, pooled with all others, together
    without privacy, and together with it. Noise comes from the operating system, so that the guarantee
    holds: numbers vary slightly from run to run.

    \b
    For example:
      cloister demo
      cloister demo --table pupils.csv
      cloister demo --schools 200 --out few-schools
    """
    if table is not None:
        return _write_pupils(absent(table, force), json)
    from cloister.cli.chem97 import chem97, compare
    from cloister.report.comparison import save
    from cloister.report.html_page import load_template

    load_template("comparison.html")  # what is missing is said before the work, not after
    data = chem97(schools)
    out.mkdir(parents=True, exist_ok=True)
    page = absent(out / "chem97.html", force)
    with advance("Fits") as progress:
        comparison = compare(data, splits, progress=progress)
    save(comparison, page)
    if json:
        return emit(comparison.to_dict() | {"page": page})
    _show(comparison, splits)
    say(f"Wrote {page} ({page.stat().st_size / 1024:.0f} kB): open it in a browser.", apart=True)


def _write_pupils(file: Path, json: bool) -> None:
    from cloister.app.predict import write_csv
    from cloister.datasets import pupils

    found = pupils()
    write_csv(file, found)
    if json:
        return emit({"table": file})
    return say(f"Wrote {file}: {counted(len(found['age']), 'made-up pupil')} of 150 schools.")


def _show(comparison: MethodComparison, splits: int) -> None:
    shown = [m for m in comparison.methods if m.kind != "private" or m.epsilon in _SHOWN]
    say(
        f"{comparison.headline}.",
        f"{comparison.description} {comparison.n_rows:,} pupils; {comparison.test:.0%} of each school's "
        f"held out, {splits} times.",
    )
    heads = ["method", "epsilon", "test nMSE", "change", "schools that gain"]
    show_table(heads, (_cells(comparison, method) for method in shown))
    say(
        "nMSE: mean squared error over the variance of the score. Change: against single-task. A school "
        "gains if its own test error is lower than with its own single-task model. These scores are not "
        "private; the data are public.",
        f"The guarantee of one run at epsilon 1:\n{comparison.guarantee}",
        f"Forecast of that run, from public numbers alone: {comparison.forecast}",
        comparison.location,
        apart=True,
    )


def _cells(comparison: MethodComparison, method: MethodScores) -> list[str]:
    alone = method.kind == "single"
    return [
        method.name,
        "inf" if math.isinf(method.epsilon) else f"{method.epsilon:g}",
        f"{method.mean:.4f} ± {method.sd:.4f}",
        "" if alone else f"{comparison.change(method):+.1%}",
        "" if alone else f"{method.gains:.0%}",
    ]
