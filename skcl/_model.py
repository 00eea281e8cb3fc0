"""What an encoder has learned: rows in, embeddings and views out."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from skcl._blocks import BLOCK
from skcl._preprocessing import Preprocessor
from skcl._table import Rows
from skcl._torch import (
    check_threads_work,
    isolated_global_rng,
    load_weights,
    resolve_device,
    weights_to_numpy,
)
from skcl.augmentations import draw_views_by_row, noise, swap
from skcl.networks import Architecture, ContrastiveNetwork

# Rows standardized at a time; a multiple of the block of the network.
CHUNK = 32 * BLOCK

CPU = torch.device("cpu")

# Where models that are being saved or loaded have their weights; None: in their state.
_APART: ContextVar["WeightsApart | None"] = ContextVar("_APART", default=None)


class WeightsApart:
    """The weights of several models, by the model's number and the parameter's name.

    Inside the context models leave their weights here, or take them.
    """

    def __init__(self, weights: dict[str, np.ndarray] | None = None):
        self.weights = {} if weights is None else weights
        self._numbers: dict[int, str] = {}  # by id: a state may be asked for twice

    def __enter__(self):
        self._token = _APART.set(self)
        return self

    def __exit__(self, *_):
        _APART.reset(self._token)

    def put(self, model: "Model", weights: dict[str, np.ndarray]) -> str:
        """Keep a model's weights, and return its number."""
        number = self._numbers.setdefault(id(model), str(len(self._numbers)))
        self.weights |= {f"{number}.{name}": w for name, w in weights.items()}
        return number

    def take(self, number: str) -> dict[str, np.ndarray]:
        """Return the weights of a model, each of which is taken once."""
        names = [name for name in self.weights if name.split(".")[0] == number]
        return {name.split(".", 1)[1]: self.weights.pop(name) for name in names}


@dataclass(frozen=True)
class Augmentation:
    """What it takes to draw views.

    Parameters
    ----------
    kind : {"swap", "noise"} or callable
        A callable has the signature ``kind(x, generator) -> view``.
    rate : float
        The rate of "swap" or "noise".
    marginals : array of shape (q, d)
        The law of each column, for "swap".
    numeric : sequence of int
        The columns that "noise" is added to.
    """

    kind: str | Callable[[Tensor, Generator], Tensor]
    rate: float
    marginals: np.ndarray
    numeric: Sequence[int]

    def on(self, device: torch.device) -> Callable[[Tensor, Generator], Tensor]:
        """Return the function (x, generator) -> view, for tensors on the device."""
        if callable(self.kind):
            return lambda x, generator: self.kind(x.clone(), generator)
        if self.kind == "noise":
            rate = torch.zeros(self.marginals.shape[1], device=device)
            rate[self.numeric] = self.rate
            return partial(noise, rate=rate)
        marginals = torch.tensor(self.marginals, device=device)
        return partial(swap, rate=self.rate, marginals=marginals)


class Model:
    """The columns, the network, and how views are drawn.

    A pickle holds arrays and configuration: the network is built again on loading.

    Parameters
    ----------
    columns : Preprocessor
        Learned on the training rows.
    architecture : Architecture
        How the network is built.
    augmentation : Augmentation
        How views are drawn.
    n_views : int
        Views of a row, unless another number is asked for.
    device : torch.device
        Where the network is.
    generator : Generator
        Source of the initial weights.
    parameters : dict
        Those of the encoder that have shaped the model.
    """

    def __init__(
        self,
        columns: Preprocessor,
        architecture: Architecture,
        augmentation: Augmentation,
        n_views: int,
        device: torch.device,
        generator: Generator,
        parameters: dict[str, Any],
    ):
        self.columns = columns
        self.architecture = architecture
        self.augmentation = augmentation
        self.n_views = n_views
        self.device = device
        self.parameters = parameters
        self.network = self._build(generator)

    def n_outputs(self, output: str) -> int:
        """Return the width of "backbone" or "projection"."""
        if output == "projection":
            return self.architecture.projection_dim
        return self.architecture.n_components

    def transform(self, rows: Rows, output: str, passthrough: bool) -> np.ndarray:
        """Return "backbone" or "projection", float32, beside the imputed columns."""
        function = self.network if output == "projection" else self.network.embed
        n_outputs = self.n_outputs(output)
        width = n_outputs + (self.columns.n_imputed if passthrough else 0)
        Z = np.empty((len(rows), width), dtype=np.float32)
        for start in range(0, len(rows), CHUNK):
            chunk = slice(start, start + CHUNK)
            x = self.columns.encode(rows[chunk], first_row=start)
            self._apply(function, x, out=Z[chunk, :n_outputs])
            if passthrough:
                Z[chunk, n_outputs:] = self.columns.impute(rows[chunk], x)
        return Z

    def embed_views(self, rows: Rows, n_views: int, seed: int) -> np.ndarray:
        """Return the unit vectors of views of each row, (n, V, projection_dim)."""
        x = torch.from_numpy(self.columns.encode(rows))
        views = self.draw_views(x, n_views, seed).flatten(0, 1)
        Z = np.empty((len(views), self.n_outputs("projection")), dtype=np.float32)
        self._apply(self.network, views.numpy(), out=Z)
        return Z.reshape(len(x), n_views, -1)

    def draw_views(self, x: Tensor, n_views: int, seed: int) -> Tensor:
        """Draw views of each standardized row, by the row alone, (n, V, d)."""
        augment = self.augmentation.on(CPU)
        with isolated_global_rng(seed, CPU, callable(self.augmentation.kind)):
            return draw_views_by_row(augment, x, n_views, seed)

    def to(self, device: torch.device) -> None:
        """Move the network to a device."""
        self.device = device
        self.network.to(device)

    def _build(self, generator: Generator | None) -> ContrastiveNetwork:
        """Return the network; a generator of None leaves its weights to be loaded."""
        return self.architecture.build(generator).to(self.device, torch.float32)

    @torch.no_grad()
    def _apply(
        self, function: Callable[[Tensor], Tensor], x: np.ndarray, out: np.ndarray
    ) -> None:
        """Write what part of the network makes of rows, in blocks of one fixed size.

        A product of matrices of another size may round differently; in blocks of one
        size a row's result does not depend on the rows beside it.
        """
        check_threads_work()
        for start in range(0, len(x), BLOCK):
            rows = torch.from_numpy(x[start : start + BLOCK])
            n = len(rows)
            if n < BLOCK:
                rows = nn.functional.pad(rows, (0, 0, 0, BLOCK - n))
            outputs = function(rows.to(self.device))[:n].float().cpu().numpy()
            if not np.isfinite(outputs).all():
                raise ValueError(
                    "The network's output is not finite: its values overflow."
                )
            out[start : start + BLOCK] = outputs

    def __getstate__(self):
        """Return arrays and configuration: portable over devices."""
        weights, apart = weights_to_numpy(self.network), _APART.get()
        if apart is not None:
            weights = apart.put(self, weights)
        return vars(self) | {"network": weights, "device": str(self.device)}

    def __setstate__(self, state):
        """Build the network again, on its device or, where that is missing, the CPU."""
        vars(self).update(state)
        weights, apart = state["network"], _APART.get()
        if apart is not None:
            # A file has no function that building the network would call.
            built = self.architecture
            if type(built) is not Architecture or built.backbone != "mlp":
                raise ValueError("a file holds another backbone than 'mlp'")
            weights = apart.take(weights)
        try:
            self.device = resolve_device(state["device"])
        except ValueError:
            self.device = CPU
        foreign = callable(self.architecture.backbone)
        with isolated_global_rng(0, self.device, foreign):
            self.network = self._build(generator=None)
        load_weights(self.network, weights)
        self.network.eval()
