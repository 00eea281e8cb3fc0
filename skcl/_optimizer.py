"""Adam with decoupled weight decay, by torch's own fused step.

To make an object of torch.optim imports torch's compiler, nearly a second in each
process: longer than the fit of a small table.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class AdamW:
    """Takes steps, and keeps the moments of the gradients.

    Parameters
    ----------
    parameters : iterable of Parameter
        Those without a gradient stay as they are.
    learning_rate : float
        The step size.
    weight_decay : float
        The decay of a step, in units of the step size.

    References
    ----------
    Loshchilov, Hutter: Decoupled weight decay regularization (ICLR 2019).
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        learning_rate: float,
        weight_decay: float,
    ):
        self.parameters = list(parameters)
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.state = {
            "mean": [torch.zeros_like(p.data) for p in self.parameters],
            "square": [torch.zeros_like(p.data) for p in self.parameters],
            "n_steps": [p.data.new_zeros(()) for p in self.parameters],
        }

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move each parameter that has a gradient."""
        moved = [i for i, p in enumerate(self.parameters) if p.grad is not None]
        mean, square, n_steps = (
            [kept[i] for i in moved] for kept in self.state.values()
        )
        adamw(
            [self.parameters[i] for i in moved],
            [self.parameters[i].grad for i in moved],
            mean,
            square,
            [],
            n_steps,
            fused=all(p.device.type in ("cpu", "cuda") for p in self.parameters),
            amsgrad=False,
            beta1=BETA1,
            beta2=BETA2,
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
            eps=EPSILON,
            maximize=False,
        )

    def state_dict(self) -> dict[str, list[Tensor]]:
        """Return what is kept of each parameter, not copied."""
        return self.state

    def load_state_dict(self, state: dict[str, list[Tensor]]) -> None:
        """Go on from what :meth:`state_dict` returned."""
        for name, tensors in state.items():
            for kept, tensor in zip(self.state[name], tensors, strict=True):
                kept.copy_(tensor)
