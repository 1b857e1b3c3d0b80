"""Who takes part in a round."""

from __future__ import annotations

from cloister.privacy.sampling import Epochs, Everyone, FixedSize, OnePass, Poisson

__all__ = ["Epochs", "Everyone", "FixedSize", "OnePass", "Poisson"]
