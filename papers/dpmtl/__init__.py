"""Private multi-task learning: formulation and methods (DPMTL).

S. Hu, Z. S. Wu and V. Smith, "Private multi-task learning: formulation and methods", 2021: the earlier form
of PMTL, with every task in every round and models projected to a ball.
"""

#: What its figures depend on of the library.
PATHS = (
    "src/cloister/algorithms",
    "src/cloister/channel.py",
    "src/cloister/datasets",
    "src/cloister/engines/local.py",
    "src/cloister/learners/linear",
    "src/cloister/lifts.py",
    "src/cloister/plan.py",
    "src/cloister/privacy",
)
