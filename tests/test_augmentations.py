"""The laws that views are drawn from."""

import numpy as np
import pytest
import torch

from skcl._preprocessing import marginal_table
from skcl.augmentations import draw_views, draw_views_by_row, noise, swap


def generator():
    return torch.Generator().manual_seed(0)


def test_marginal_table_keeps_the_law_of_each_column():
    rng = np.random.RandomState(0)
    X = np.column_stack(
        [rng.normal(size=5000), rng.choice([0, 1, 5], 5000, p=[0.7, 0.2, 0.1])]
    )
    table = marginal_table(X.astype(np.float32))
    assert table.shape == (1000, 2)
    assert np.isin(table, X.astype(np.float32)).all()
    np.testing.assert_allclose(table.mean(axis=0), X.mean(axis=0), atol=0.02)
    np.testing.assert_allclose(table.std(axis=0), X.std(axis=0), atol=0.02)
    few = marginal_table(X[:7].astype(np.float32))
    np.testing.assert_array_equal(few, np.sort(X[:7].astype(np.float32), axis=0))


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
def test_swap(rate):
    """Each value on its own, by equally likely values of its column."""
    x = torch.full((20000, 2), -1.0)
    marginals = torch.stack([torch.arange(4.0), 10 + torch.arange(4.0)], dim=1)
    view = swap(x, generator(), rate=rate, marginals=marginals)
    swapped = view != -1
    np.testing.assert_allclose(swapped.float().mean(dim=0), rate, atol=0.015)
    both = (swapped[:, 0] & swapped[:, 1]).float().mean().item()
    assert both == pytest.approx(rate**2, abs=0.015)
    for j in range(2):
        counts = torch.bincount((view[swapped[:, j], j] - 10 * j).long(), minlength=4)
        assert len(counts) == 4
        np.testing.assert_allclose(counts / counts.sum(), 0.25, atol=0.02)
    assert (x == -1).all()


def test_noise():
    x = torch.arange(30000.0).reshape(-1, 2)
    added = noise(x, generator(), rate=0.5) - x
    np.testing.assert_allclose(added.mean(dim=0), 0, atol=0.02)
    np.testing.assert_allclose(added.std(dim=0), 0.5, atol=0.02)


def augment(x, source):
    return noise(x, source, rate=1.0)


def test_views_of_a_batch_differ():
    views = draw_views(augment, torch.zeros(50, 3), 4, generator())
    assert views.shape == (50, 4, 3)
    assert len(views.flatten(0, 1).unique(dim=0)) == 200


def test_views_by_row_depend_on_seed_and_row_alone():
    x = torch.randn(30, 3, generator=generator())
    views = draw_views_by_row(augment, x, 4, seed=0)
    order = torch.randperm(30, generator=generator())
    assert torch.equal(draw_views_by_row(augment, x[order], 4, seed=0), views[order])
    assert torch.equal(draw_views_by_row(augment, x[7:8], 4, seed=0), views[7:8])
    assert not torch.equal(draw_views_by_row(augment, x, 4, seed=1), views)
    residual = (views - x[:, None]).flatten()
    assert len(residual.unique()) > 350  # no two rows or views share a draw
    assert residual.std().item() == pytest.approx(1, abs=0.15)
    minus = draw_views_by_row(augment, -torch.zeros(2, 3), 4, seed=0)
    assert torch.equal(draw_views_by_row(augment, torch.zeros(2, 3), 4, seed=0), minus)
