"""Backbone, head, and unit vectors."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from skcl.augmentations import swap
from skcl.clustering import entropic_relaxation
from skcl.losses import LOSSES
from skcl.networks import Architecture, ColumnEmbedding, ContrastiveNetwork, mlp


def generator():
    return torch.Generator().manual_seed(0)


def numbers(n_features):
    """Columns of numbers alone."""
    return ColumnEmbedding([0] * n_features, [], None)


def test_outputs_are_unit_vectors():
    network = Architecture([0] * 5, [], 6, 3, (16, 8), "mlp").build(generator())
    x = torch.randn(40, 5, generator=generator())
    assert network.embed(x).shape == (40, 6)
    torch.testing.assert_close(network(x).norm(dim=1), torch.ones(40))


def test_a_zero_vector_has_a_finite_value_and_gradient():
    network = ContrastiveNetwork(numbers(3), nn.Identity(), nn.Identity(), False)
    x = torch.zeros(2, 3, requires_grad=True)
    z = network(x)
    z.sum().backward()
    assert torch.equal(z.detach(), torch.zeros(2, 3))
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("n", [1, 512, 513, 1500])
@pytest.mark.parametrize("widths", [(5, 16, 4), (1, 8, 1), (600, 700, 2), (3, 1, 3)])
def test_an_mlp_is_the_plain_network_of_torch(n, widths):
    """Value and gradients, whatever the blocks and widths."""
    backbone = mlp(widths, generator())
    ours = ContrastiveNetwork(numbers(widths[0]), backbone, nn.Identity(), False)
    layers = []
    for depth, (n_in, n_out) in enumerate(pairwise(widths)):
        if depth:
            layers += [nn.LayerNorm(n_in, elementwise_affine=False)] * (n_in > 2)
            layers.append(nn.ReLU())
        layers.append(nn.Linear(n_in, n_out))
    plain = nn.Sequential(*layers)
    plain.load_state_dict(ours.backbone.state_dict())
    x = torch.randn(n, widths[0], generator=generator())
    torch.testing.assert_close(ours.embed(x), plain(x))
    ours.embed(x).square().sum().backward()
    plain(x).square().sum().backward()
    for a, b in zip(ours.backbone.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3)


def test_initial_weights_are_uniform_in_the_inverse_root_of_the_fan_in():
    weight = mlp((100, 400), generator())[0].weight
    assert weight.abs().max() <= 0.1
    assert weight.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.02)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", ["infonce", "spectral", "logistic"])
def test_a_training_step_stays_on_its_device(loss, weighted):
    """On a device without values: nothing is made on another, and none is read.

    But by "supcon", which counts labelled rows to cut its tiles.
    """
    meta = {"device": "meta"}
    architecture = Architecture([0] * 3 + [5], [1], 8, 6, (16,), "mlp")
    network = architecture.build(generator()).to("meta")
    x, marginals = torch.empty(600, 4, **meta), torch.empty(50, 4, **meta)
    w = torch.empty(600, **meta) if weighted else None
    views = swap(x.repeat_interleave(2, dim=0), None, rate=0.3, marginals=marginals)
    z = network(views).unflatten(0, (600, 2))
    centers, prior = torch.empty(5, 6, **meta), torch.empty(600, 5, **meta)
    penalty = entropic_relaxation(z.mean(dim=1), centers, 0.1, prior, w)
    (LOSSES[loss](z, 0.2, None, w) + penalty).backward()
    assert all(p.grad.device.type == "meta" for p in network.parameters())
