"""Who takes part in a round, and with what kind of noise: options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cloister.privacy.mechanisms import Mechanism
    from cloister.privacy.sampling import Sampling

__all__ = ["FixedSize", "Hidden", "Noise", "OnePass", "Rate", "mechanism_of", "sampling_of"]

Rate = Annotated[float | None, typer.Option(help="Each task takes part in a round with this probability.")]
Hidden = Annotated[
    bool, typer.Option("--hidden", help="Assert that nobody but the curator sees who takes part.")
]
FixedSize = Annotated[int | None, typer.Option(help="So many random tasks take part in a round.")]
OnePass = Annotated[bool, typer.Option("--one-pass", help="Each task takes part in one round.")]


class Noise(StrEnum):
    """What kind of noise a release gets."""

    gaussian = "gaussian"
    laplace = "laplace"
    wishart = "wishart"
    toeplitz = "toeplitz"
    tree = "tree"
    blt = "blt"


def sampling_of(rate: float | None, hidden: bool, size: int | None, one_pass: bool) -> Sampling:
    """Return who takes part: by default everyone; at most one way can be asked for."""
    from cloister.privacy import sampling

    if (rate is not None) + (size is not None) + one_pass > 1:
        raise typer.BadParameter("Give at most one of --rate, --fixed-size and --one-pass.")
    if rate is not None:
        return sampling.Poisson(rate, hidden=hidden)
    if size is not None:
        return sampling.FixedSize(size, hidden=hidden)
    if hidden:
        raise typer.BadParameter("--hidden goes with --rate.")
    return sampling.OnePass() if one_pass else sampling.Everyone()


def mechanism_of(noise: Noise) -> Mechanism:
    """Return a mechanism that is still to be calibrated."""
    from cloister.mechanisms import BLT, Gaussian, L2Laplace, Toeplitz, Tree, Wishart

    kinds = {
        Noise.gaussian: Gaussian,
        Noise.laplace: L2Laplace,
        Noise.wishart: Wishart,
        Noise.toeplitz: Toeplitz,
        Noise.tree: Tree,
        Noise.blt: BLT,
    }
    made: Mechanism = kinds[noise]()
    return made
