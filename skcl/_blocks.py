"""Matrix products whose bits do not depend on the number of threads.

Once the inner dimension of a product is long, a BLAS splits it over its threads,
and partial sums added in another grouping round differently. Here no inner
dimension, of a product or of its gradient, is longer than `BLOCK`; longer sums are
added block by block, in order. (MKL keeps inner dimensions of 512 whole and splits
those of 1,000.) Products with a vector it splits at any length: they are multiplied
and summed without it.
"""

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK = 512


def apply_in_blocks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a row-wise function to at most `BLOCK` rows at a time."""
    if len(x) <= BLOCK:
        return function(x)
    return torch.cat([function(block) for block in x.split(BLOCK)])


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return a b for a (n, k) and b (k, m); the gradients sum over m and over n."""
    rows = [
        torch.cat([_sum_inner(block, columns) for columns in b.split(BLOCK, dim=1)], 1)
        for block in a.split(BLOCK)
    ]
    return torch.cat(rows)


def pairwise_products(a: Tensor, b: Tensor) -> Tensor:
    """Return a bᵀ for a (n, d) and b (m, d)."""
    return product(a, b.T)


def summed_products(a: Tensor, b: Tensor) -> Tensor:
    """Return aᵀ b, a sum over the rows of a (n, d) and b (n, e)."""
    return product(a.T, b)


def _sum_inner(a: Tensor, b: Tensor) -> Tensor:
    """Return a b for at most `BLOCK` rows of a and columns of b."""
    inner = zip(a.split(BLOCK, dim=1), b.split(BLOCK), strict=True)
    blocks = [
        (p[:, :, None] * q).sum(dim=1) if 1 in (*p.shape, *q.shape) else p @ q
        for p, q in inner
    ]
    return blocks[0] if len(blocks) == 1 else torch.stack(blocks).sum(dim=0)


def mean(values: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean of a vector, weighted if weights are given."""
    if weight is not None:
        return _sum(values * weight) / _sum(weight)
    return _sum(values) / len(values)


def _sum(values: Tensor) -> Tensor:
    return torch.stack([block.sum() for block in values.split(BLOCK)]).sum()
