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
        self.state: dict[int, dict[str, Tensor]] = {}  # from the first gradient on

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move each parameter that has a gradient."""
        moved = {
            i: parameter
            for i, parameter in enumerate(self.parameters)
            if parameter.grad is not None
        }
        for i, parameter in moved.items():
            if parameter.grad.layout != torch.strided:
                raise ValueError(
                    "A gradient is sparse: the backbone must have dense ones."
                )
            if i not in self.state:
                self.state[i] = {
                    "mean": torch.zeros_like(parameter),
                    "square": torch.zeros_like(parameter),
                    "n_steps": parameter.new_zeros(()),
                }
        states = [self.state[i] for i in moved]
        adamw(
            list(moved.values()),
            [parameter.grad for parameter in moved.values()],
            [state["mean"] for state in states],
            [state["square"] for state in states],
            [],
            [state["n_steps"] for state in states],
            fused=all(p.device.type in ("cpu", "cuda") for p in moved.values()),
            amsgrad=False,
            beta1=BETA1,
            beta2=BETA2,
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
            eps=EPSILON,
            maximize=False,
        )

    def state_dict(self) -> dict[int, dict[str, Tensor]]:
        """Return what is kept of each parameter, by its position; not copied."""
        return self.state

    def load_state_dict(self, state: dict[int, dict[str, Tensor]]) -> None:
        """Go on from what :meth:`state_dict` returned."""
        self.state = {
            i: {
                name: tensor.to(self.parameters[i].device, copy=True)
                for name, tensor in kept.items()
            }
            for i, kept in state.items()
        }
