"""What tasks tell each other about how they are alike: the structures of a shared prior.

`Joint`, `Mean` and `FeatureRelevance` take a few short rounds in which each task says where its weights lie
from a public point; `Subspace` and `Support` take one round in which it says the direction of its own
weights.
"""

from cloister.algorithms.structures.joint import Joint
from cloister.algorithms.structures.mean import Mean
from cloister.algorithms.structures.relevance import FeatureRelevance
from cloister.algorithms.structures.structure import Structure
from cloister.algorithms.structures.subspace import Subspace
from cloister.algorithms.structures.support import Support

__all__ = ["FeatureRelevance", "Joint", "Mean", "Structure", "Subspace", "Support"]
