"""Real and synthetic multi-task data; tables come with their public codebook. Nothing is downloaded.

>>> from cloister import datasets
>>> datasets.codebook("chem97").column_names
('age', 'gcsescore', 'gender[M]')
>>> datasets.low_rank(seed=0, tasks=8, rows=5, dim=6).X_train.shape
(8, 5, 6)
"""

from cloister.datasets.clients import dirichlet, fedprox, fedprox_iid
from cloister.datasets.images import (
    Episodes,
    Omniglot,
    disjoint_episodes,
    drawer_episodes,
    episodes,
    femnist,
    load_omniglot,
    mnist_by_writer,
    pack,
)
from cloister.datasets.leaf import (
    SHAKESPEARE_ALPHABET,
    leaf_celeba,
    leaf_femnist,
    leaf_shakespeare,
    leaf_stackoverflow,
)
from cloister.datasets.own_tables import load_lsoa, load_rdataset
from cloister.datasets.real import Dataset, codebook, load, load_landmine, load_school, names
from cloister.datasets.synthetic import Centres, Simulation, around_centres, group_sparse, low_rank, pupils

__all__ = [
    "SHAKESPEARE_ALPHABET",
    "Centres",
    "Dataset",
    "Episodes",
    "Omniglot",
    "Simulation",
    "around_centres",
    "codebook",
    "dirichlet",
    "disjoint_episodes",
    "drawer_episodes",
    "episodes",
    "fedprox",
    "fedprox_iid",
    "femnist",
    "group_sparse",
    "leaf_celeba",
    "leaf_femnist",
    "leaf_shakespeare",
    "leaf_stackoverflow",
    "load",
    "load_landmine",
    "load_lsoa",
    "load_omniglot",
    "load_rdataset",
    "load_school",
    "low_rank",
    "mnist_by_writer",
    "names",
    "pack",
    "pupils",
]
