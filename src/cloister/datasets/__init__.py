"""Real and synthetic multi-task data; tables come with their public codebook. Nothing is downloaded.

>>> from cloister import datasets
>>> datasets.codebook("chem97").column_names
('age', 'gcsescore', 'gender[M]')
>>> datasets.low_rank(seed=0, tasks=8, rows=5, dim=6).X_train.shape
(8, 5, 6)
"""

from cloister.datasets.federated import dirichlet, fedprox, fedprox_iid
from cloister.datasets.images import femnist, mnist_by_writer
from cloister.datasets.leaf import (
    SHAKESPEARE_ALPHABET,
    leaf_celeba,
    leaf_femnist,
    leaf_shakespeare,
    leaf_stackoverflow,
)
from cloister.datasets.lsoa import load_lsoa
from cloister.datasets.meta import Centres, around_centres
from cloister.datasets.rdataset import load_rdataset
from cloister.datasets.real import Dataset, codebook, load, load_landmine, load_school, names
from cloister.datasets.synthetic import Simulation, group_sparse, low_rank

__all__ = [
    "SHAKESPEARE_ALPHABET",
    "Centres",
    "Dataset",
    "Simulation",
    "around_centres",
    "codebook",
    "dirichlet",
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
    "load_rdataset",
    "load_school",
    "low_rank",
    "mnist_by_writer",
    "names",
]
