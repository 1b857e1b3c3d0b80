"""A museum of broken guarantees: each with its claim, an attack that refutes it, and the thing repaired.

Nothing here can be selected for a run: none of it is exported by `cloister`, so no plan can name it.
"""

from __future__ import annotations

from functools import lru_cache

from cloister.audit.museum.exhibit import (
    Claim,
    Conviction,
    Exhibit,
    Repaired,
    convict,
    convict_repaired,
    each,
)
from cloister.audit.museum.first_version_exhibits import first_version_exhibits
from cloister.audit.museum.noise_exhibits import floating_point_exhibits, randomness_exhibits
from cloister.audit.museum.record_exhibits import record_exhibits
from cloister.audit.museum.sampling_exhibits import sampling_exhibits, weight_exhibits
from cloister.audit.museum.scale_exhibits import local_noise_exhibits, tree_exhibits
from cloister.audit.museum.state_exhibits import state_exhibits
from cloister.audit.museum.wishart_exhibits import wishart_exhibits

__all__ = ["Claim", "Conviction", "Exhibit", "Repaired", "convict", "convict_repaired", "each", "museum"]


@lru_cache(maxsize=1)
def museum() -> tuple[Exhibit, ...]:
    """Return all exhibits.

    Examples
    --------
    >>> [exhibit.name for exhibit in museum()][:2]
    ['wishart-release', 'wishart-outputs']
    """
    return (
        *wishart_exhibits(),
        *first_version_exhibits(),
        *local_noise_exhibits(),
        *sampling_exhibits(),
        *weight_exhibits(),
        *record_exhibits(),
        *state_exhibits(),
        *floating_point_exhibits(),
        *randomness_exhibits(),
        *tree_exhibits(),
    )
