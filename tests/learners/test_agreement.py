"""A kernel that errs anywhere, however little, is not used."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from cloister.networks.kernel_checks import Trial, agrees
from cloister.networks.layers import conv2d_by_products


def trial(computed=torch.float32, of_examples=True, of_weight=True):
    kinds = torch.float32, computed
    return Trial((70, 3, 5, 4), (4, 3, 3, 2), True, *kinds, of_examples, of_weight, torch.device("cpu"))


def kernel(images, weight, bias):
    return conv2d_by_products(images, weight, bias, (1, 1), (1, 1))


class Spoilt(torch.autograd.Function):
    """A tensor as it is, with one number of its gradient changed."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        gradient.view(-1)[-1] += 1
        return gradient


def lost(images, weight, bias):
    """Patches whose last entry is the one before it."""
    return kernel(images, torch.cat([weight[..., :-1], weight[..., -1:].roll(1, 2)], 4), bias)


WRONG = {
    "an entry of the filters' gradient": lambda x, w, b: kernel(x, Spoilt.apply(w), b),
    "an entry of the images' gradient": lambda x, w, b: kernel(Spoilt.apply(x), w, b),
    "an entry of the bias' gradient": lambda x, w, b: kernel(x, w, Spoilt.apply(b)),
    "another client's bias": lambda x, w, b: kernel(x, w, b.flip(0)),
    "another client's filters": lambda x, w, b: kernel(x, w[:1].expand_as(w), b),
    "a wrong address": lost,
    "an output": lambda x, w, b: kernel(x, w, b) + F.one_hot(torch.tensor(3), 4).view(4, 1, 1),
}


def test_what_is_right_agrees():
    for one in (trial(), trial(of_examples=False), trial(of_examples=False, of_weight=False)):
        assert agrees(kernel, F.conv2d, one)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_does_not(name):
    assert not agrees(WRONG[name], F.conv2d, trial())


def test_a_result_may_be_rounded_once():
    once, twice = (
        (lambda *given: kernel(*given).bfloat16()),
        (lambda *given: (kernel(*given) * 1.01).bfloat16()),
    )
    forward = trial(torch.bfloat16, of_examples=False, of_weight=False)
    assert agrees(once, F.conv2d, forward)
    assert not agrees(twice, F.conv2d, forward)
