"""The convolution for graphics cards: here by Triton's interpreter, there on the card itself."""

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

#: clients, examples each, channels, height, width, features, filter height and width
SHAPES = [(1, 1, 1, 5, 5, 2, 5, 5), (3, 2, 3, 9, 8, 5, 3, 2), (2, 3, 17, 6, 7, 33, 1, 3)]


def compare(shape, device, tolerance):
    """Check output and all three slopes against one plain convolution a client."""
    from cloister.learners.network.kernels import client_conv2d

    clients, each, channels, height, width, features, high, wide = shape
    draw = torch.Generator().manual_seed(0)
    x, w, b = (
        torch.randn(size, generator=draw).to(device).requires_grad_()
        for size in (
            (clients * each, channels, height, width),
            (clients, features, channels, high, wide),
            (clients, features),
        )
    )
    found = client_conv2d(x, w, b)
    expected = torch.cat(
        [F.conv2d(rows, own, bias) for rows, own, bias in zip(x.chunk(clients), w, b, strict=True)]
    )
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    slope = torch.randn(expected.shape, generator=draw).to(device)
    pairs = zip(*(torch.autograd.grad(out, (x, w, b), slope) for out in (found, expected)), strict=True)
    for one, two in pairs:
        torch.testing.assert_close(one, two, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.skipif(torch.cuda.is_available(), reason="they are tried on the card itself")
@needs_triton
def test_kernels_are_convolutions_interpreted():
    """In a process of its own: Triton reads its switch when it is first imported."""
    code = "import sys, test_kernels; [test_kernels.compare(s, 'cpu', 1e-5) for s in test_kernels.SHAPES]"
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
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_are_convolutions_on_a_card(shape):
    compare(shape, "cuda", 1e-4)
