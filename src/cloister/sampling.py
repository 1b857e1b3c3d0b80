"""Who takes part in a round."""

from __future__ import annotations

from cloister.privacy.sampling import Epochs, Everyone, FixedSize, InOrder, OnePass, Poisson

__all__ = ["Epochs", "Everyone", "FixedSize", "InOrder", "OnePass", "Poisson"]
