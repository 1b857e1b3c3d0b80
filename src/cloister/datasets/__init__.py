"""Real and synthetic multi-task data, each with its public codebook.

>>> from cloister import datasets
>>> datasets.codebook("chem97").column_names
('age', 'gcsescore', 'gender[M]')
>>> datasets.low_rank(seed=0, tasks=8, rows=5, dim=6).X_train.shape
(8, 5, 6)
"""

from cloister.datasets.lsoa import load_lsoa
from cloister.datasets.rdataset import load_rdataset
from cloister.datasets.real import Dataset, codebook, load, load_landmine, load_school, names
from cloister.datasets.synthetic import Simulation, group_sparse, low_rank

__all__ = [
    "Dataset",
    "Simulation",
    "codebook",
    "group_sparse",
    "load",
    "load_landmine",
    "load_lsoa",
    "load_rdataset",
    "load_school",
    "low_rank",
    "names",
]
