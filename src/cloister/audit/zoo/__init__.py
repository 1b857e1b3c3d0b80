"""A zoo of planted bugs: what the auditor must convict, each by a test of its own.

The museum shows guarantees that were printed elsewhere. Here are mistakes of a few lines in the library's own
code, each of which makes its guarantee false. ``cloister audit --self-test`` shows that the auditor convicts
them all, and their plans without them not.
"""

from __future__ import annotations

from cloister.audit.zoo.bug import Bug, Trial, convict, planted
from cloister.audit.zoo.noise_bugs import NOISE_BUGS
from cloister.audit.zoo.price_bugs import PRICE_BUGS
from cloister.audit.zoo.run_bugs import RUN_BUGS
from cloister.audit.zoo.self_test import SelfTest, self_test
from cloister.audit.zoo.sensitivity_bugs import SENSITIVITY_BUGS

__all__ = ["Bug", "SelfTest", "Trial", "convict", "planted", "self_test", "zoo"]


def zoo() -> tuple[Bug, ...]:
    """Return all bugs.

    Examples
    --------
    >>> len(zoo()) > 60
    True
    """
    return (*NOISE_BUGS, *SENSITIVITY_BUGS, *RUN_BUGS, *PRICE_BUGS)
