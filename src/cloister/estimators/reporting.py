"""A page about a fit: for its operator, for everybody, or for one task."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from cloister.errors import InputError
from cloister.store.files import write_file, write_private
from cloister.tables.codebook import Codebook
from cloister.tables.table_run import TableRun
from cloister.tasks import Tasks

__all__ = ["WritesReports"]


class WritesReports:
    """The part of an estimator that writes a page about its run."""

    _fitted: TableRun

    def report(
        self,
        path: str | os.PathLike[str],
        X: Any = None,
        y: Any = None,
        tasks: ArrayLike | None = None,
        *,
        public: bool = False,
        task: object = None,
        audit: str | os.PathLike[str] | None = None,
        force: bool = False,
    ) -> Path:
        """Write one self-contained page about this run: what was learned, promised, seen and spent.

        Parameters
        ----------
        path : path
            The HTML file. One that is there is left as it is, unless forced.
        X, y, tasks : optional
            Rows as in `fit`, of the fit or others, to measure who gains on parts of them held out. They stay
            here.
        public : bool, default=False
            The edition that may be published.
        task : optional
            One task's own edition, by its id.
        audit : path, optional
            What ``cloister audit RUN --json`` has printed.
        force : bool, default=False
            Replace a file that is there.

        Privacy
        -------
        By default the page has parts made of tasks' own models: it is private, for whoever holds all rows,
        and marked so. With `task` it is that task's alone. With `public` it is made of plan, billboard,
        guarantee and ledger alone, and refused where the guarantee does not hold.

        Examples
        --------
        >>> import numpy as np, tempfile
        >>> from cloister import SharedPriorRegressor
        >>> x, school = np.linspace(0, 1, 40), np.repeat(np.arange(10), 4)
        >>> model = SharedPriorRegressor("school", bounds={"x": (0, 1), "y": (0, 1)})
        >>> model = model.fit({"school": school, "x": x}, x)
        >>> with tempfile.TemporaryDirectory() as home:
        ...     page = model.report(f"{home}/run.html", public=True).read_text(encoding="utf-8")
        >>> "Public edition" in page, "<script" in page
        (True, False)
        """
        from cloister.report.run import operator_page, public_page, task_page

        check_is_fitted(self, "guarantee_")
        if public and (task is not None or X is not None):
            raise InputError("public=True is made of public things alone. Leave task, X and y out.")
        if task is not None and X is not None:
            raise InputError("X and y are for the operator's edition. Leave them, or task, out.")
        page = Path(path)
        if page.exists() and not force:
            raise InputError(
                f"{page} is already there and is left as it is. Choose another name, or replace it by "
                "force=True."
            )
        part = self._public_part(audit)
        if public:
            return write_file(page, public_page(part).encode())
        if task is not None:
            return write_private(page, task_page(part, self._fitted.task_model(task)).encode())
        gains = None if X is None else self._gains(X, y, tasks)
        return write_private(page, operator_page(part, self._fitted, gains).encode())

    def _public_part(self, audit: str | os.PathLike[str] | None) -> Any:
        from cloister.report.run import PublicPart, read_audit

        ledger, run = getattr(self, "ledger", None), self._fitted
        part = PublicPart.of(run, None if ledger is None else ledger.balance)
        return part if audit is None else replace(part, audit=read_audit(audit, run.plan))

    def _gains(self, X: Any, y: Any, tasks: ArrayLike | None) -> Any:
        from cloister.report.gains import measure_gains

        if y is None:
            raise InputError("X must come with y, as in fit, to measure who gains. Pass both, or neither.")
        if not isinstance(self._fitted.units, Codebook) or not self._fitted.plan.rounds:
            raise InputError("Nothing was shared, so there is nothing to gain. Leave X and y out.")
        data: Tasks = self._encode(X, y, tasks, None)[2]  # type: ignore[attr-defined]
        return measure_gains(self._fitted, data)
