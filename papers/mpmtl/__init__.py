"""Model-protected multi-task learning (MP-MTL).

J. Liang, Z. Liu, J. Zhou, X. Jiang, C. Zhang and F. Wang, "Model-protected multi-task learning",
arXiv:1809.06546.
"""
