"""Attacks on what is claimed, and published mechanisms that do not keep their promise.

Nothing here can be selected for a run: none of it is exported by `cloister`, so no plan file can name it.
"""

from cloister.audit.auditor import audit, audit_mechanism
from cloister.audit.bound import Bound, lower_bound
from cloister.audit.verdict import Audit

__all__ = ["Audit", "Bound", "audit", "audit_mechanism", "lower_bound"]
