"""Private multi-task learning: formulation and applications to federated learning (PMTL).

S. Hu, Z. S. Wu and V. Smith, "Private multi-task learning: formulation and applications to federated
learning", arXiv:2108.12978.
"""

#: What its figures depend on of the library.
PATHS = (
    "src/cloister/algorithms",
    "src/cloister/channel.py",
    "src/cloister/datasets",
    "src/cloister/engines/batched.py",
    "src/cloister/engines/local.py",
    "src/cloister/learners",
    "src/cloister/lifts.py",
    "src/cloister/plan.py",
    "src/cloister/privacy",
)
