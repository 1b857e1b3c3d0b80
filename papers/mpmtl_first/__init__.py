"""Model-protected multi-task learning (MP-MTL), first version.

The first version of arXiv:1809.06546 (J. Liang, Z. Liu, J. Zhou, X. Jiang, C. Zhang and F. Wang), whose
algorithms have other noise than those of the later one: its Algorithms 2 and 3 take 2K for the sensitivity
of a squared length, which is K², and its Algorithm 1 reads the scale of its noise from the data. Both are
also in `cloister museum wishart-length` and `scale-from-data`. Its other figures are those of the later
version, with 2/K times the noise (1.33 times at the clip of 1.5 that they have here).
"""
