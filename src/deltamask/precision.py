"""Matrix products in bfloat16, while everything that lasts from one batch to the next stays in float32.

On processors with matrix units for it (AMX, AVX-512 BF16) and on accelerators these are several times as fast.
Weights, scores, their gradients and the kept activations of the frozen prefix are float32 in either case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from deltamask.config import Precision

__all__ = ["mixed"]


@contextmanager
def mixed(precision: Precision, device: torch.device) -> Iterator[None]:
    """Forward passes inside multiply matrices in ``precision``."""
    if precision == "float32":
        yield
    elif device.type != "cpu":
        with torch.autocast(device.type, torch.bfloat16):
            yield
    else:
        with torch.autocast("cpu", torch.bfloat16), _Float32Attention():
            yield


class _Float32Attention(TorchFunctionMode):
    """Attention over the few tokens of an image, in float32: torch's bfloat16 one for CPUs is slower backwards.

    By `results/real/rounds.json`; where it is not called by this name, it is only slower.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        with torch.autocast("cpu", enabled=False):
            return func(*map(_float32, args), **{name: _float32(value) for name, value in (kwargs or {}).items()})


def _float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
