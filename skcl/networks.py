"""The network: a backbone, and a projection head onto the unit sphere."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Generator, Tensor, nn
from torch.nn.utils import skip_init

from skcl._blocks import BLOCK, apply_in_blocks, product


class ContrastiveNetwork(nn.Module):
    """A backbone, whose output is the embedding, and a projection head above it.

    Both are applied to blocks of rows, so that no sum over the rows of a batch in a
    gradient depends on the number of threads; but a backbone that may normalize over
    the batch sees it whole in training.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, whole_batches: bool):
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.whole_batches = whole_batches

    def embed(self, x: Tensor) -> Tensor:
        """Return the embedding, (n, n_components)."""
        if self.training and self.whole_batches:
            return self.backbone(x)
        return apply_in_blocks(self.backbone, x)

    def forward(self, x: Tensor) -> Tensor:
        """Return unit vectors, (n, projection_dim); a zero vector stays zero."""
        projected = apply_in_blocks(self.head, self.embed(x))
        return nn.functional.normalize(projected, dim=-1, eps=1e-6)


@dataclass(frozen=True)
class Architecture:
    """What it takes to build a network.

    Parameters
    ----------
    n_features : int
        Width of the input.
    n_components : int
        Width of the embedding.
    projection_dim : int
        Dimension of the unit vectors.
    hidden_layer_sizes : sequence of int
        Widths of the hidden layers of an MLP.
    backbone : "mlp" or callable
        A callable ``backbone(n_features, n_components)`` returns an nn.Module.
    """

    n_features: int
    n_components: int
    projection_dim: int
    hidden_layer_sizes: Sequence[int]
    backbone: str | Callable[[int, int], nn.Module]

    def build(self, generator: Generator | None) -> ContrastiveNetwork:
        """Build the network; a generator of None leaves weights to be loaded."""
        if callable(self.backbone):
            backbone = self.backbone(self.n_features, self.n_components)
            if not isinstance(backbone, nn.Module):
                raise ValueError(
                    "The callable given as backbone must return an nn.Module; it "
                    f"returned {type(backbone).__name__}."
                )
        else:
            hidden = self.hidden_layer_sizes
            backbone = mlp((self.n_features, *hidden, self.n_components), generator)
        width = max(self.n_components, self.projection_dim)
        head = (self.n_components, width, self.projection_dim)
        head = mlp(head, generator)
        return ContrastiveNetwork(backbone, head, whole_batches=callable(self.backbone))


class Linear(nn.Linear):
    """A linear layer of any width whose bits no thread count changes."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x Wᵀ + b."""
        if 1 in self.weight.shape or max(self.weight.shape) > BLOCK:
            return product(x, self.weight.T) + self.bias
        return super().forward(x)


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
        The normalization has no weights of its own: the next layer's serve.
    """
    return nn.Sequential(*_layers(sizes, generator))


def _layers(sizes: Sequence[int], generator: Generator | None) -> Iterator[nn.Module]:
    for depth, (n_in, n_out) in enumerate(pairwise(sizes)):
        if depth > 0:
            # Of one or two units the normalization leaves no more than a sign.
            if n_in > 2:
                yield nn.LayerNorm(n_in, elementwise_affine=False)
            yield nn.ReLU()
        yield _linear(n_in, n_out, generator)


def _linear(n_in: int, n_out: int, generator: Generator | None) -> Linear:
    # nn.Linear's own initialization draws from the global generator.
    layer = skip_init(Linear, n_in, n_out, dtype=torch.float32)
    if generator is not None:
        bound = n_in**-0.5
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.uniform_(-bound, bound, generator=generator)
    return layer
