"""Layers for graphics cards: here by Triton's interpreter, there on the card itself."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

has_triton = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not has_triton, reason="triton is not installed")
needs_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no graphics card")

#: clients, examples each, channels, height, width, features, filter height and width; stride, zeros on the
#: left, right, top and bottom, pooling window
CONVOLUTIONS = [
    ((1, 1, 1, 5, 5, 2, 5, 5), (1, (0, 0, 0, 0), 1)),
    ((3, 2, 3, 9, 8, 5, 3, 2), (1, (0, 0, 0, 0), 1)),
    ((2, 3, 17, 6, 7, 33, 1, 3), (1, (0, 0, 0, 0), 1)),
    ((2, 3, 3, 9, 8, 5, 3, 2), (1, (0, 0, 0, 0), 2)),  # a row of places is in no window
    ((2, 2, 4, 8, 9, 5, 4, 4), (1, (1, 2, 1, 2), 1)),
    ((2, 2, 4, 8, 9, 5, 3, 3), (2, (1, 1, 1, 1), 2)),
    ((2, 2, 2, 9, 9, 5, 1, 1), (2, (0, 0, 0, 0), 1)),  # some pixels have no gradient
    ((1, 2, 2, 9, 9, 70, 3, 3), (1, (0, 0, 0, 0), 4)),
    ((2, 2, 16, 10, 10, 32, 3, 3), (1, (0, 0, 0, 0), 2)),  # tiles without a rest
    ((2, 3, 5, 8, 7, 5, 2, 2), (1, (0, 0, 0, 0), 1)),  # 20, 27, 33, 48 and 50 entries a patch
    ((2, 3, 3, 9, 8, 5, 3, 3), (1, (0, 0, 0, 0), 1)),
    ((2, 3, 11, 5, 8, 5, 1, 3), (1, (0, 0, 0, 0), 2)),
    ((2, 3, 3, 10, 9, 9, 4, 4), (1, (0, 0, 0, 0), 1)),
    ((2, 3, 2, 11, 10, 5, 5, 5), (2, (1, 0, 1, 0), 1)),
]
#: clients, rows each, inputs, features
PRODUCTS = [(1, 1, 1, 1), (2, 3, 5, 70), (2, 17, 300, 3), (3, 10, 70, 62)]


def drawn(device, *shapes):
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draw).to(device).requires_grad_() for shape in shapes]


def compare(found, expected, inputs, tolerance):
    """Check an output and its gradients in all inputs."""
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    slope = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).to(expected)
    pairs = zip(*(torch.autograd.grad(out, inputs, slope) for out in (found, expected)), strict=True)
    for one, two in pairs:
        torch.testing.assert_close(one, two, rtol=tolerance, atol=10 * tolerance)


def compare_convolution(shape, geometry, device, tolerance):
    """Check one program for all clients against a plain convolution for each."""
    from cloister.networks.convolutions import Geometry, client_conv2d

    clients, each, channels, height, width, features, high, wide = shape
    inputs = drawn(
        device,
        (clients * each, channels, height, width),
        (clients, features, channels, high, wide),
        (clients, features),
    )
    stride, padding, window = geometry

    def plain(rows, own, bias):
        out = F.conv2d(F.pad(rows, padding), own, bias, stride=stride)
        return out if window == 1 else F.max_pool2d(F.relu(out), window)

    x, w, b = inputs
    expected = torch.cat([plain(*own) for own in zip(x.chunk(clients), w, b, strict=True)])
    compare(client_conv2d(*inputs, Geometry(*geometry)), expected, inputs, tolerance)
    found = client_conv2d(x, w[:1].expand_as(w), b[:1].expand_as(b), Geometry(*geometry))  # one for all
    torch.testing.assert_close(found, plain(x, w[0], b[0]), rtol=tolerance, atol=tolerance)


def compare_product(shape, device, tolerance):
    from cloister.networks.kernel_selection import client_linear

    clients, each, inner, outer = shape
    x, w, b = inputs = drawn(device, (clients, each, inner), (clients, outer, inner), (clients, outer))
    compare(client_linear(*inputs), x @ w.transpose(1, 2) + b[:, None], inputs, tolerance)
    one, shift = w[:1], b[:1]  # one for all
    found = client_linear(x, one.expand_as(w), shift.expand_as(b))
    torch.testing.assert_close(
        found, x @ one.transpose(1, 2) + shift[:, None], rtol=tolerance, atol=tolerance
    )


def check_norms(device, kinds=(torch.float32,)):
    """Compare norms with torch's, of one row and many, and one that errs in a single entry is not trusted."""
    from cloister.networks import norm_kernel

    for kind in kinds:
        for count, width in ((0, 48), (1, 1), (7, 48), (33, 384), (2, 5000)):
            given = drawn(device, (count, width), (width,), (width,))
            x, w, b = (one.detach().to(kind) for one in given)
            x.requires_grad_()
            expected = F.layer_norm(x, (width,), w, b, 1e-3)
            compare(norm_kernel.frozen_norm(x, w, b, 1e-3), expected, [x], norm_kernel.APART[kind])
        assert norm_kernel.trusts_norm(48, kind, torch.device(device), 1e-3)
        check_norms_apart(device, kind)
    right, norm_kernel._launched = norm_kernel._launched, lambda *a, **k: spoilt(right(*a, **k))
    with pytest.warns(UserWarning, match="norms of 49"):
        assert not norm_kernel.trusts_norm(49, torch.float32, torch.device(device), 1e-3)
    norm_kernel._launched = right


def check_norms_apart(device, kind, width=48, count=40):
    """Check that an absurd row is what torch makes of it, and that others are as without it, to the bit."""
    from cloister.networks.norm_kernel import frozen_norm

    x, w, b, slope = (
        one.detach().to(kind) for one in drawn(device, (count, width), (width,), (width,), (count, width))
    )
    weight = w.repeat_interleave(2)[::2]  # not as it lies in memory

    def there_and_back(norm, rows):
        rows = rows.clone().requires_grad_()
        out = norm(rows)
        return torch.stack([out, *torch.autograd.grad(out, rows, slope)]).detach()

    alone = there_and_back(lambda rows: frozen_norm(rows, weight, b, 1e-3), x)
    for value in (torch.nan, torch.inf, -torch.inf, 1e30, 0.0):
        for place in (0, 17, count - 1):
            rows = x.clone()
            rows[place] = value
            found = there_and_back(lambda rows: frozen_norm(rows, weight, b, 1e-3), rows)
            others = torch.arange(count, device=x.device) != place
            assert torch.equal(found[:, others], alone[:, others])
            expected = there_and_back(lambda rows: F.layer_norm(rows, (width,), w, b, 1e-3), rows)
            if value != 1e30:  # whose square overflows in one order of sums and not in another
                assert torch.equal(found[:, place].isfinite(), expected[:, place].isfinite())
    flat = torch.cat([x.new_zeros(1), x.flatten()])  # rows that begin at no whole 16 bytes
    assert torch.equal(
        there_and_back(lambda rows: frozen_norm(rows, weight, b, 1e-3), flat[1:].view_as(x)), alone
    )


def check_trust(device, convolutions=CONVOLUTIONS):
    """Check that kernels are trusted for all shapes, and that one that errs in a single entry is not."""
    from cloister.networks import convolutions as layers
    from cloister.networks import kernel_selection

    for (clients, each, channels, height, width, features, *sides), geometry in convolutions:
        x, w, b = drawn(
            device,
            (clients * each, channels, height, width),
            (clients, features, channels, *sides),
            (clients, features),
        )
        for images, bias in ((x, b), (x.detach(), None)):
            assert kernel_selection.trusts_convolution(images, w, bias, layers.Geometry(*geometry))
    for clients, each, inner, outer in PRODUCTS:
        shapes = (clients, each, inner), (clients, outer, inner), (clients, outer)
        assert kernel_selection.trusts_product(*drawn(device, *shapes))
    for module, name, asked in (
        (
            layers,
            "_convolve_filter_gradient",
            lambda: kernel_selection.trusts_convolution(x, w, b, layers.Geometry()),
        ),
        (
            kernel_selection,
            "_product_gradients",
            lambda: kernel_selection.trusts_product(*drawn(device, *shapes)),
        ),
    ):
        right = getattr(module, name)
        kernel_selection._convolution.cache_clear()
        kernel_selection._try_product.cache_clear()
        setattr(module, name, lambda *a, right=right: spoilt(right(*a)))
        with pytest.warns(UserWarning, match="torch's products are used"):
            assert not asked()
        setattr(module, name, right)


def spoilt(found):
    """Change the last number of a gradient of weights."""
    (found if isinstance(found, torch.Tensor) else found[1]).view(-1)[-1] += 1
    return found


@pytest.mark.skipif(torch.cuda.is_available(), reason="they are tried on the card itself")
@needs_triton
def test_kernels_are_layers_interpreted():
    """In a process of its own: Triton reads its switch when it is first imported."""
    code = (
        "import test_kernels as t;"
        "[t.compare_convolution(*s, 'cpu', 1e-5) for s in t.CONVOLUTIONS[:9]];"
        "[t.compare_product(s, 'cpu', 1e-5) for s in t.PRODUCTS];"
        "t.check_trust('cpu', t.CONVOLUTIONS[:1]);"
        "t.check_norms('cpu')"
    )
    paths = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@needs_card
@needs_triton
@pytest.mark.parametrize(("shape", "geometry"), CONVOLUTIONS, ids=str)
def test_kernels_are_convolutions_on_a_card(shape, geometry):
    compare_convolution(shape, geometry, "cuda", 1e-4)


@needs_card
@needs_triton
@pytest.mark.parametrize("shape", PRODUCTS, ids=str)
def test_kernels_are_products_on_a_card(shape):
    compare_product(shape, "cuda", 1e-4)


@needs_card
@needs_triton
@pytest.mark.parametrize(("precision", "half"), [("highest", False), ("high", False), ("high", True)])
def test_kernels_on_a_card_are_exact_on_whole_numbers(precision, half):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            check_trust("cuda", CONVOLUTIONS[1:6:2] + CONVOLUTIONS[9:12])
    finally:
        torch.set_float32_matmul_precision(before)


@needs_card
@needs_triton
def test_norms_on_a_card_are_those_of_torch():
    check_norms("cuda", (torch.float32, torch.bfloat16))
