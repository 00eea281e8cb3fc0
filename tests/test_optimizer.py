"""The optimizer against torch's own."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from skcl._optimizer import AdamW


def parameters():
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 3), (4,), (2, 4)]
    return [nn.Parameter(torch.randn(s, generator=generator)) for s in shapes]


def run(optimizer, trained, n_steps, first=0):
    """Steps down the same losses; the last parameter has a gradient in every other."""
    for step in range(first, first + n_steps):
        used = trained if step % 2 else trained[:-1]
        optimizer.zero_grad()
        sum(((step + 1) * p).sin().sum() for p in used).backward()
        optimizer.step()


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_steps_are_those_of_torch(weight_decay):
    ours, theirs = parameters(), parameters()
    run(AdamW(ours, 0.05, weight_decay), ours, 7)
    optimizer = torch.optim.AdamW(theirs, 0.05, weight_decay=weight_decay, fused=True)
    run(optimizer, theirs, 7)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_goes_on_from_a_state():
    whole, parts = parameters(), parameters()
    run(AdamW(whole, 0.05, 0.1), whole, 7)
    first = AdamW(parts, 0.05, 0.1)
    run(first, parts, 4)
    second = AdamW(parts, 0.05, 0.1)
    second.load_state_dict(deepcopy(first.state_dict()))
    run(second, parts, 3, first=4)
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
