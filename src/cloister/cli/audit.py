"""``cloister audit``: attack a plan's own releases, and say whether its claim stands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cloister.cli.options import Force, Json, Output, Types
from cloister.cli.shell import absent, advance, emit, note, say, show_table


def audit(
    plan: Annotated[
        Path | None, typer.Argument(metavar="PLAN", help="A plan file, or the folder of a run.")
    ] = None,
    draws: Annotated[int, typer.Option(min=1000, help="Games in each of the two worlds.")] = 1_000_000,
    confidence: Annotated[float, typer.Option(help="An honest plan is acquitted at least so often.")] = 0.95,
    types: Types = None,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Audit planted bugs instead, which must all be convicted.")
    ] = False,
    output: Output = None,
    force: Force = False,
    json: Json = False,
) -> None:
    r"""Attack a plan's own code, and compare with what it claims.

    No data are needed. The adversary chooses all messages but one and sees the billboard; the plan's own
    code clips, sums and adds noise. Also tested: one run with many canaries, the law of the noise, that it is
    fresh and, where it says so, exact, the sensitivity of every channel, and that no task's data reach
    another's model past the billboard.

    With --self-test the auditor itself is tested. Mistakes are planted in the library's own code, one at a
    time, and the plans that rest on it are attacked: each bug must be convicted, by the test that is for it,
    and no plan without one. It takes a minute or two.

    Exit code 0: no contradiction found, which proves nothing. Exit code 1: convicted, or refused. A plan
    whose guarantee does not hold to begin with (bounds read from the data, say) is attacked all the same, and
    the verdict says so.

    \b
    For example:
      cloister audit exam-run
      cloister audit exam-run --draws 5000000 -o audit.html
      cloister audit --self-test
    """
    if self_test:
        _test_the_auditor(plan, json)
        return
    if plan is None:
        raise typer.BadParameter("Name a plan: a plan file, or the folder of a run. Or give --self-test.")
    from cloister.app.folder import read_plan
    from cloister.audit import audit as attack
    from cloister.audit.audit_page import facts, save
    from cloister.audit.auditor import check_auditable
    from cloister.core.errors import InputError
    from cloister.report.html_page import load_template

    if not 0 < confidence < 1:
        raise InputError(f"--confidence must be above 0 and below 1. Got {confidence:g}. Use 0.95.")
    if output is not None:
        load_template("audit.html")  # what is missing is said before the work, not after
        absent(output, force)
    read = read_plan(plan, types or ())
    check_auditable(read)
    with advance("Attacking") as progress:
        found = attack(read, draws=draws, confidence=confidence, progress=progress)
    if output is not None:
        save(read, found, output, source=plan)
        note(f"Written: {output}")
    about = facts(read, plan)
    if json:
        emit({"audited": {name.lower(): text for name, text in about.items()}} | found.to_dict())
    else:
        say(found, "\n".join(f"{name}: {text}" for name, text in about.items()))
    if found.convicted:
        raise typer.Exit(1)


def _test_the_auditor(plan: Path | None, json: bool) -> None:
    from cloister.audit.zoo import self_test, zoo

    if plan is not None:
        raise typer.BadParameter("--self-test brings plans of its own. Leave the plan out.")
    with advance("Planted bugs") as progress:
        found = self_test(zoo(), progress=progress)
    if json:
        emit(found.to_dict())
    else:
        rows = ((t.bug.name, t.bug.convicted_by, "yes" if t.caught else "NO") for t in found.trials)
        show_table(["planted bug", "test that must convict it", "does"], rows)
        say(str(found), apart=True)
    if not found.passed:
        raise typer.Exit(1)
