"""Model-protected multi-task learning (MP-MTL).

J. Liang, Z. Liu, J. Zhou, X. Jiang, C. Zhang and F. Wang, "Model-protected multi-task learning",
arXiv:1809.06546.
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
