"""One page for all outcomes of a folder: what they promise together first, then what each has found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cloister.core.errors import InputError
from cloister.core.spelling import counted
from cloister.privacy.guarantee import Guarantee
from cloister.privacy.statement import percent
from cloister.report.html_page import Stamp, load_template
from cloister.report.run_page import PublicPart
from cloister.store.files import write_file


def write_outcomes(page: Path, together: Guarantee, runs: Mapping[str, tuple[PublicPart, Path]]) -> Path:
    """Write the page, of public things alone; it is refused where the guarantee does not hold.

    Parameters
    ----------
    page : Path
        The HTML file.
    together : Guarantee
        What all outcomes promise together.
    runs : mapping of str to (PublicPart, Path)
        For each outcome what is public of its run, and its own page, which lies beside this one.
    """
    if not together.holds:
        raise InputError(f"A page of all outcomes is for a guarantee that holds. Name one run for {page}.")
    parts = [part for part, _ in runs.values()]
    naming, stamp = parts[0].naming, Stamp.of(parts[0].plan)
    fingerprints = ", ".join(part.plan.fingerprint[:16] for part in parts)
    tasks = naming.words(f"{together.n_tasks:,} tasks")
    text = load_template("outcomes.html").render(
        stamp=replace(stamp, plan=counted(len(parts), "plan"), fingerprint=fingerprints),
        headline=f"{tasks} learned {counted(len(parts), 'outcome')} together: what one of them holds is "
        f"detected in at most {percent(together.detection())} of cases from all",
        statement=together.statement.in_words(naming.words),
        outcomes=[(name, part.content, own.name) for name, (part, own) in runs.items()],
    )
    return write_file(page, str(text).encode())
