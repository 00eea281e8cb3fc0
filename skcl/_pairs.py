"""Sums over all pairs of a batch, in flat memory.

The pairs are visited in tiles. Of the partition function they are those of the upper
triangle, a similarity serving both of its anchors; and of a large batch no tile is
kept: backward computes them again. So memory grows with the batch, not with its square.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import combinations_with_replacement, pairwise
from itertools import product as cartesian

import torch
from torch import Tensor

from skcl._blocks import BLOCK, pairwise_products, product, summed_products

# With weights of 1e-30 or more, exponentials of up to this need no maximum taken off
# them: neither they nor sums of a million leave the normal numbers of float32.
SAFE, SAFE_WEIGHTED = 70.0, 16.0

# Pairs whose exponentials are kept for backward, those of 4,000 anchors: 32 MiB in
# float32, and twice that with weights or a shift.
KEPT = 2**23


def log_partition(
    z: Tensor,
    temperature: float,
    weight: Tensor | None = None,
    closed: Tensor | None = None,
) -> Tensor:
    """Return log Σ_{b≠a} w_b exp(z_a·z_b / t) of each anchor a, (m,).

    Parameters
    ----------
    z : Tensor of shape (m, d)
        Unit vectors.
    temperature : float
        t, positive.
    weight : Tensor of shape (m,), default=None
        w, at least 1e-30 and at most 1; None is 1 for all.
    closed : bool Tensor of shape (m,), default=None
        Anchors that sum over one another alone. None: all sum over all others.

    Returns
    -------
    Tensor of shape (m,)
        -inf of an anchor that has nothing to sum over.
    """
    if any(isinstance(v, Tensor) and v.requires_grad for v in (temperature, weight)):
        raise ValueError("temperature and weight have no gradient here: detach them.")
    if z.dtype in (torch.float16, torch.bfloat16):
        weight = None if weight is None else weight.float()
        return log_partition(z.float(), temperature, weight, closed).to(z.dtype)
    if closed is None:
        return _LogPartition.apply(z, temperature, weight, 0)
    order = closed.argsort(stable=True)
    weight = None if weight is None else weight[order]
    n_open = int((~closed).sum())
    value = _LogPartition.apply(_Permute.apply(z, order), temperature, weight, n_open)
    return _Permute.apply(value, order.argsort())


class _Permute(torch.autograd.Function):
    """Rows in another order: that no row comes twice, backward need not know."""

    @staticmethod
    def forward(ctx, x, order):
        ctx.save_for_backward(order)
        return x[order]

    @staticmethod
    def backward(ctx, gradient):
        return _Permute.apply(gradient, ctx.saved_tensors[0].argsort()), None


def sum_over_own_views(z: Tensor) -> Tensor:
    """Return Σ_{v≠v'} z_iv·z_iv' of each row of z (n, V, d), (n,)."""
    return _SumOverOwnViews.apply(z)


class _SumOverOwnViews(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return (z * _other_views(z)).sum(dim=(1, 2))

    @staticmethod
    def backward(ctx, gradient):
        return (2 * gradient)[:, None, None] * _other_views(*ctx.saved_tensors)


def _other_views(z: Tensor) -> Tensor:
    return z.sum(dim=1, keepdim=True) - z


def sum_over_others_of_class(x: Tensor, y: Tensor) -> Tensor:
    """Return the sum of x (n, d) over the other rows of each row's class, (n, d).

    Of an unlabelled row (y = -1) it is 0. Nothing is subtracted from the sum over the
    class, of which a row can be nearly all.
    """
    return _SumOverOthers.apply(x, y)


class _SumOverOthers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(y)
        return _sum_over_others(x, y)

    @staticmethod
    def backward(ctx, gradient):
        y = ctx.saved_tensors[0]
        return _SumOverOthers.apply(gradient, y), None


def _sum_over_others(x: Tensor, y: Tensor) -> Tensor:
    result = torch.zeros_like(x)
    ranges = _ranges(0, len(x))
    for rows, columns in cartesian(ranges, ranges):
        is_counted = (y[rows, None] == y[columns]) & (y[columns] >= 0)
        if rows == columns:
            is_counted.fill_diagonal_(False)
        result[rows] += product(is_counted.to(x.dtype), x[columns])
    return result


def _ranges(*bounds: int) -> list[slice]:
    """Cut what lies between the bounds into ranges of at most a block."""
    starts = [
        start for first, end in pairwise(bounds) for start in range(first, end, BLOCK)
    ]
    return [slice(*ends) for ends in pairwise([*starts, bounds[-1]])]


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, temperature, weight, n_open):
        with _full_precision(z):
            tiles = _Tiles(z, temperature, weight, n_open)
            total = z.new_zeros(len(z))
            n_pairs = len(z) * (len(z) + 1) // 2
            keep = ctx.needs_input_grad[0] and n_pairs <= KEPT
            kept = []
            for rows, columns, is_mutual in tiles.pairs():
                by_row, by_column = tile = tiles.exponentials(rows, columns, is_mutual)
                total[rows] += by_row.sum(dim=1)
                if is_mutual and rows != columns:
                    total[columns] += by_column.sum(dim=0)
                if keep:
                    kept.extend(tile)
            ctx.save_for_backward(z, weight, tiles.shift, total, *kept)
            ctx.temperature, ctx.n_open = temperature, n_open
            return total.log() if tiles.shift is None else total.log() + tiles.shift

    @staticmethod
    def backward(ctx, gradient):
        if torch.is_grad_enabled():
            raise RuntimeError("The loss can be differentiated once, not twice.")
        z, weight, shift, total, *kept = ctx.saved_tensors
        with _full_precision(z):
            tiles = _Tiles(z, ctx.temperature, weight, ctx.n_open, shift)
            share = gradient / (total * ctx.temperature)
            share = torch.where(total > 0, share, 0)
            result = torch.zeros_like(z)
            for k, (rows, columns, is_mutual) in enumerate(tiles.pairs()):
                if kept:
                    by_row, by_column = kept[2 * k : 2 * k + 2]
                else:
                    by_row, by_column = tiles.exponentials(rows, columns, is_mutual)
                # The gradient by the similarities of the tile.
                if not is_mutual:
                    pairs = by_row * share[rows, None]
                elif tiles.is_symmetric:
                    pairs = (share[rows, None] + share[columns]).mul_(by_row)
                else:
                    pairs = by_row * share[rows, None] + by_column * share[columns]
                result[rows] += product(pairs, z[columns])
                if rows != columns:
                    result[columns] += summed_products(pairs, z[rows])
        return result, None, None, None


def _full_precision(z: Tensor) -> AbstractContextManager:
    """Switch off a caller's autocast, in which exponentials would overflow."""
    if z.device.type == "meta":
        return nullcontext()
    return torch.autocast(z.device.type, enabled=False)


class _Tiles:
    """The pairs of anchors a and b in tiles, a in one slice and b in another.

    The exponentials of a tile's rows are w_b exp(z_a·z_b / t - s_a), those of its
    columns w_a exp(z_a·z_b / t - s_b). The shift s is an anchor's largest exponent, or
    None where nothing can overflow.
    """

    def __init__(
        self,
        z: Tensor,
        temperature: float,
        weight: Tensor | None,
        n_open: int,
        shift: Tensor | None = None,
    ):
        self.z = z
        self.scaled = z / temperature
        self.log_weight = None if weight is None else weight.log()
        self.n_open = n_open
        safe = SAFE if weight is None else SAFE_WEIGHTED
        if shift is None and 1 / temperature > safe:
            shift = self._largest()
        self.shift = shift
        # The exponentials of rows and columns are the same.
        self.is_symmetric = weight is None and shift is None

    def pairs(self) -> Iterator[tuple[slice, slice, bool]]:
        """Yield each tile's slices, and whether its columns sum over its rows too."""
        ranges = _ranges(0, self.n_open, len(self.z))
        for rows, columns in combinations_with_replacement(ranges, 2):
            is_mutual = (rows.start < self.n_open) == (columns.start < self.n_open)
            yield rows, columns, is_mutual

    def exponentials(
        self, rows: slice, columns: slice, is_mutual: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return a tile's exponentials of the rows, and of the columns if they sum."""
        similarity = self._similarity(rows, columns)
        if self.is_symmetric:
            by_row = similarity.exp_()
            return by_row, by_row
        by_row = self._shifted(similarity, columns, rows).exp()
        if not is_mutual:
            return by_row, None
        return by_row, self._shifted(similarity.T, rows, columns).exp().T

    def _similarity(self, rows: slice, columns: slice) -> Tensor:
        """Return z_a·z_b / t, and -inf of an anchor with itself."""
        similarity = pairwise_products(self.scaled[rows], self.z[columns])
        return similarity.fill_diagonal_(-torch.inf) if rows == columns else similarity

    def _weighted(self, similarity: Tensor, columns: slice) -> Tensor:
        """Add log w_b."""
        if self.log_weight is None:
            return similarity
        return similarity + self.log_weight[columns]

    def _shifted(self, similarity: Tensor, columns: slice, rows: slice) -> Tensor:
        """Add log w_b, and take off s_a."""
        exponents = self._weighted(similarity, columns)
        return exponents if self.shift is None else exponents - self.shift[rows, None]

    def _largest(self) -> Tensor:
        """Return the largest exponent of each anchor; 0 if it has none."""
        largest = torch.full_like(self.z[:, 0], -torch.inf)
        for rows, columns, is_mutual in self.pairs():
            similarity = self._similarity(rows, columns)
            of_rows = self._weighted(similarity, columns).amax(dim=1)
            largest[rows] = torch.maximum(largest[rows], of_rows)
            if is_mutual:
                of_columns = self._weighted(similarity.T, rows).amax(dim=1)
                largest[columns] = torch.maximum(largest[columns], of_columns)
        return torch.where(largest == -torch.inf, 0, largest)
