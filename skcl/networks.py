"""The network: columns, a backbone, and a projection head onto the unit sphere."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Generator, Tensor, nn

from skcl._blocks import BLOCK, apply_in_blocks, product

# Codes of a category: two that all columns have, and then one for each category.
MISSING, UNSEEN, FIRST_CATEGORY = 0, 1, 2

# Of a category's vector. Fewer categories have a dimension each.
MAX_CATEGORY_WIDTH = 32


class ColumnEmbedding(nn.Module):
    """What the backbone sees of the rows x (n, d): numbers, and nothing missing.

    First the numbers, 0 for a missing one; then an indicator of missing values for
    each of the columns `missing_indicator`; then each category's learned vector. The
    vectors of a column begin as one-hot; of more than `MAX_CATEGORY_WIDTH` categories,
    as random unit vectors of that width. Those of `MISSING` and `UNSEEN` begin at 0,
    and stay there unless training rows have these codes.

    Parameters
    ----------
    n_codes : sequence of int
        Number of codes of each column of x; 0 for numbers.
    missing_indicator : sequence of int
        The columns of numbers whose missing values are indicated.
    generator : Generator or None
        Source of random vectors. None leaves all to be loaded.
    """

    def __init__(
        self,
        n_codes: Sequence[int],
        missing_indicator: Sequence[int],
        generator: Generator | None,
    ):
        super().__init__()
        self.numeric = [j for j, n in enumerate(n_codes) if n == 0]
        self.categorical = [j for j, n in enumerate(n_codes) if n > 0]
        self.missing_indicator = list(missing_indicator)
        self.vectors = nn.ParameterList(
            _category_vectors(n, generator) for n in n_codes if n > 0
        )

    @property
    def n_outputs(self) -> int:
        """Width of what the backbone sees."""
        widths = [vectors.shape[1] for vectors in self.vectors]
        return len(self.numeric) + len(self.missing_indicator) + sum(widths)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, n_outputs)."""
        numbers = x[:, self.numeric] if self.categorical else x
        parts = [numbers.nan_to_num(0.0)]  # none is infinite
        if self.missing_indicator:
            parts.append(x[:, self.missing_indicator].isnan().to(x.dtype))
        for j, vectors in zip(self.categorical, self.vectors, strict=True):
            parts.append(nn.functional.embedding(x[:, j].long(), vectors))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _category_vectors(n_codes: int, generator: Generator | None) -> nn.Parameter:
    n_categories = n_codes - FIRST_CATEGORY
    width = min(max(n_categories, 1), MAX_CATEGORY_WIDTH)
    options = {"dtype": torch.float32}
    vectors = torch.zeros(n_codes, width, **options)
    if generator is not None:
        own = torch.eye(n_categories, width, **options)
        if n_categories > width:
            own = torch.randn(n_categories, width, generator=generator, **options)
        vectors[FIRST_CATEGORY:] = nn.functional.normalize(own)
    return nn.Parameter(vectors)


class ContrastiveNetwork(nn.Module):
    """A backbone, whose output is the embedding, and a projection head above it.

    Both are applied to blocks of rows, so that no sum over the rows of a batch in a
    gradient depends on the number of threads; but a backbone that may normalize over
    the batch sees it whole in training.
    """

    def __init__(
        self,
        columns: ColumnEmbedding,
        backbone: nn.Module,
        head: nn.Module,
        whole_batches: bool,
    ):
        super().__init__()
        self.columns = columns
        self.backbone = backbone
        self.head = head
        self.whole_batches = whole_batches

    def embed(self, x: Tensor) -> Tensor:
        """Return the embedding, (n, n_components)."""
        if self.training and self.whole_batches:
            return self._embed(x)
        return apply_in_blocks(self._embed, x)

    def forward(self, x: Tensor) -> Tensor:
        """Return unit vectors, (n, projection_dim); a zero vector stays zero."""
        if self.training and self.whole_batches:
            return apply_in_blocks(self._project, self._embed(x))
        return apply_in_blocks(lambda rows: self._project(self._embed(rows)), x)

    def _embed(self, x: Tensor) -> Tensor:
        return self.backbone(self.columns(x))

    def _project(self, embedded: Tensor) -> Tensor:
        projected = self.head(embedded).float()  # also of a caller's autocast
        square = torch.linalg.vecdot(projected, projected)[:, None]
        return projected * square.clamp_min(1e-12).rsqrt()


@dataclass(frozen=True)
class Architecture:
    """What it takes to build a network.

    Parameters
    ----------
    n_codes : sequence of int
        Number of codes of each column of the input; 0 for numbers.
    missing_indicator : sequence of int
        The columns of numbers whose missing values are indicated.
    n_components : int
        Width of the embedding.
    projection_dim : int
        Dimension of the unit vectors.
    hidden_layer_sizes : sequence of int
        Widths of the hidden layers of an MLP.
    backbone : "mlp" or callable
        A callable ``backbone(n_inputs, n_components)`` returns an nn.Module.
    """

    n_codes: Sequence[int]
    missing_indicator: Sequence[int]
    n_components: int
    projection_dim: int
    hidden_layer_sizes: Sequence[int]
    backbone: str | Callable[[int, int], nn.Module]

    def build(self, generator: Generator | None) -> ContrastiveNetwork:
        """Build the network; a generator of None leaves weights to be loaded."""
        columns = ColumnEmbedding(self.n_codes, self.missing_indicator, generator)
        if callable(self.backbone):
            backbone = self.backbone(columns.n_outputs, self.n_components)
            if not isinstance(backbone, nn.Module):
                raise ValueError(
                    "The callable given as backbone must return an nn.Module; it "
                    f"returned {type(backbone).__name__}."
                )
        else:
            hidden = self.hidden_layer_sizes
            backbone = mlp((columns.n_outputs, *hidden, self.n_components), generator)
        width = max(self.n_components, self.projection_dim)
        head = (self.n_components, width, self.projection_dim)
        head = mlp(head, generator)
        whole_batches = callable(self.backbone)
        return ContrastiveNetwork(columns, backbone, head, whole_batches)


class Linear(nn.Module):
    """A linear layer of any width whose bits no thread count changes.

    Its weights begin uniform in ±1/√n_in; a generator of None leaves them to be loaded.
    nn.Linear would draw them from the global generator.
    """

    def __init__(self, n_in: int, n_out: int, generator: Generator | None):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_out, n_in, dtype=torch.float32))
        self.bias = nn.Parameter(torch.empty(n_out, dtype=torch.float32))
        if generator is not None:
            with torch.no_grad():
                for parameter in self.parameters():
                    bound = n_in**-0.5
                    parameter.uniform_(-bound, bound, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return x Wᵀ + b."""
        if 1 in self.weight.shape or max(self.weight.shape) > BLOCK:
            return product(x, self.weight.T) + self.bias
        return nn.functional.linear(x, self.weight, self.bias)


class LayerNorm(nn.Module):
    """Layer normalization without weights to learn: the next layer's serve.

    With constant ones torch normalizes twice as fast as with none.
    """

    def __init__(self, width: int):
        super().__init__()
        for name, value in (("ones", 1), ("zeros", 0)):
            constant = torch.full((width,), value, dtype=torch.float32)
            self.register_buffer(name, constant, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the rows of x, each of mean 0 and variance 1."""
        return nn.functional.layer_norm(x, self.ones.shape, self.ones, self.zeros)


def mlp(sizes: Sequence[int], generator: Generator | None = None) -> nn.Sequential:
    """Linear layers, with a layer normalization and ReLU between them.

    Parameters
    ----------
    sizes : sequence of int
        Width of the input, of each hidden layer, and of the output.
    generator : Generator or None
        Source of the initial weights, uniform in ±1/√fan_in. None leaves them
        uninitialized, to be loaded.

    Returns
    -------
    nn.Sequential
        The network, on the CPU.
    """
    return nn.Sequential(*_layers(sizes, generator))


def _layers(sizes: Sequence[int], generator: Generator | None) -> Iterator[nn.Module]:
    for depth, (n_in, n_out) in enumerate(pairwise(sizes)):
        if depth > 0:
            # Of one or two units the normalization leaves no more than a sign.
            if n_in > 2:
                yield LayerNorm(n_in)
            yield nn.ReLU(inplace=True)  # of what no other layer's backward needs
        yield Linear(n_in, n_out, generator)
