"""Convolution on a processor, client by client, beside torch's own layers one after another."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from cloister.networks.layers import conv2d_one_by_one

CLIENTS, EACH = 3, 4


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def whole(*shape, seed):
    """Draw small whole numbers: their products and sums are exact in whichever order a processor adds."""
    return drawn(*shape, seed=seed).round()


def both(window, stride, dilation, shift, spoil=None, draw=whole):
    """Return outputs and slopes of ours, and of plain layers for each client.

    Windows have ties. A shift that is no whole number would break them by how it was rounded, and processors
    differ in when they add it.
    """
    images = draw(CLIENTS * EACH, 2, 13, 12, seed=0)
    if spoil is not None:
        images[0, 0, 5, 5] = spoil
    inputs = [images, draw(CLIENTS, 5, 2, 3, 3, seed=1), *([draw(CLIENTS, 5, seed=2)] if shift else [])]
    found = []
    for ours in (True, False):
        x, w, *b = leaves = [part.clone().requires_grad_() for part in inputs]
        if ours:
            out = conv2d_one_by_one(x, w, b[0] if b else None, stride, dilation, window)
        else:
            parts = []
            for k, own in enumerate(x.chunk(CLIENTS)):
                one = F.conv2d(own, w[k], b[0][k] if b else None, stride=stride, dilation=dilation)
                parts.append(one if window == 1 else F.max_pool2d(F.relu(one), window))
            out = torch.cat(parts)
        slopes = torch.autograd.grad((out * torch.arange(out.numel()).reshape(out.shape)).sum(), leaves)
        found.append((out, *slopes))
    return zip(*found, strict=True)


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize(("stride", "dilation"), [((1, 1), (1, 1)), ((2, 1), (1, 1)), ((1, 1), (1, 2))])
def test_outputs_and_slopes_are_torchs(window, stride, dilation, shift):
    """With ties in windows, and rests that no window holds."""
    for ours, plain in both(window, stride, dilation, shift):
        torch.testing.assert_close(ours, plain, rtol=0, atol=0)


@pytest.mark.parametrize("window", [1, 2])
def test_other_numbers_are_torchs_but_for_rounding(window):
    """Windows have no ties here. A sum of n products is off by at most n roundings."""
    for ours, plain in both(window, (1, 1), (1, 1), True, draw=drawn):
        n = CLIENTS * EACH * 13 * 12  # more than any of the sums has parts
        torch.testing.assert_close(ours, plain, rtol=0, atol=n * 2**-24 * float(plain.detach().abs().max()))


def test_in_sixteen_bits_parameters_have_slopes_of_thirty_two():
    """Whole numbers this small are exact in bfloat16; so are outputs, before the shift is added."""
    with torch.autocast("cpu", torch.bfloat16):
        (ours, plain), *slopes = both(2, (1, 1), (1, 1), False)
    assert ours.dtype == plain.dtype == torch.bfloat16
    torch.testing.assert_close(ours, plain, rtol=0, atol=0)
    for found, expected in slopes:
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02 * float(expected.abs().max()))


def test_what_is_no_number_stays_with_its_client():
    for ours, plain in both(2, (1, 1), (1, 1), True, spoil=float("nan")):
        torch.testing.assert_close(ours, plain, rtol=0, atol=0, equal_nan=True)
        assert all(other.isfinite().all() for other in ours.chunk(CLIENTS)[1:])


def test_it_is_not_differentiated_twice():
    """It would be wrong, without a word, where slopes are written in place."""
    torch.manual_seed(0)
    w = torch.randn(1, 2, 1, 3, 3, requires_grad=True)
    out = conv2d_one_by_one(torch.randn(2, 1, 6, 6), w, None, (1, 1), (1, 1), 2)
    (slope,) = torch.autograd.grad((out**2).sum(), w, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
