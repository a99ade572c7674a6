"""The trained mask as a file: one bit a weight, compressed, with the head and the base model's fingerprint.

Applied to the checkpoint that it was trained on, it gives the fine-tuned weights. The file is a `wire` frame, so
that damage or a wrong base model is noticed; inside, the positions of the rarer bit go through the exact set codec
that makes them smallest.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deltamask import codecs, heads
from deltamask.codecs.base import Reader, varint
from deltamask.errors import DataError, LimitError, MalformedError, MismatchError
from deltamask.heads import Head
from deltamask.masking import MaskedModel, module_fingerprint
from deltamask.wire import SERVER, Frame, open_frame, seal

__all__ = ["SUFFIX", "Adapter"]

SUFFIX = ".dmask"

_MOST_TEXT = 1 << 20
_MOST_WEIGHTS = 2**30
_CODECS = ("rans", "rice", "bitmap")


@dataclass(frozen=True)
class Adapter:
    """A mask over named weights of one base model, and the classifier that was trained with it."""

    layers: tuple[tuple[str, tuple[int, ...]], ...]
    mask: NDArray[np.uint8]
    head: Head
    model: int
    round: int = 0
    about: dict[str, Any] = field(default_factory=dict)
    """Anything else worth keeping, for instance the accuracy; plain JSON."""

    @classmethod
    def of(
        cls,
        masked: MaskedModel,
        theta: NDArray[np.float32],
        head: Head,
        round: int,
        about: dict[str, Any],
        cut: float = 0.5,
    ) -> Adapter:
        """The mask over ``masked`` that keeps the weights with ``theta >= cut``."""
        layers = tuple((w.name, w.shape) for w in masked.layers)
        return cls(layers, (theta >= np.float32(cut)).astype(np.uint8), head, masked.fingerprint(), round, about)

    def to_bytes(self) -> bytes:
        """The content of a file."""
        rarer = int(2 * int(self.mask.sum()) <= self.mask.size)
        positions = np.flatnonzero(self.mask == rarer)
        packed = min((codecs.get(name).encode(positions, self.mask.size) for name in _CODECS), key=len)
        text = {"layers": self.layers, "head": self.head.weight.shape, "rarer": rarer, "about": self.about}
        described = json.dumps(text, separators=(",", ":")).encode()
        payload = varint(len(described)) + described + heads.to_bytes(self.head) + packed
        return seal(Frame("adapter", self.mask.size, self.model, SERVER, self.round, 0, payload))

    @classmethod
    def from_bytes(cls, data: bytes, limit: int = _MOST_WEIGHTS) -> Adapter:
        """The inverse of `to_bytes` for untrusted bytes; all errors are `WireError`.

        A hundred bytes can speak of any number of weights, and each of them takes a byte of memory here: more than
        ``limit`` are refused.
        """
        frame = open_frame(data, kind="adapter")
        if frame.size > limit:
            raise LimitError(
                f"trained mask: {frame.size} weights, at most {limit} accepted; raise limit= if they are real"
            )
        reader = Reader(frame.payload, "trained mask")
        described = reader.take(reader.varint(_MOST_TEXT))
        try:
            text = json.loads(described)
            layers = tuple((str(name), tuple(int(n) for n in shape)) for name, shape in text["layers"])
            classes, features = (int(n) for n in text["head"])
            rarer, about = int(text["rarer"]), dict(text["about"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise MalformedError(f"trained mask: the description does not parse ({error})") from None
        if any(n < 0 for _, shape in layers for n in shape) or sum(_count(s) for _, s in layers) != frame.size:
            raise MalformedError(f"trained mask: layers that do not add up to {frame.size} weights")
        if rarer not in (0, 1) or classes < 0 or features < 0:
            raise MalformedError(f"trained mask: bit {rarer}, head {classes} x {features}")
        head = heads.from_bytes(reader.take(4 * classes * (features + 1)), classes, features)
        packed = reader.rest()
        positions = codecs.for_payload(packed).decode(packed, frame.size)
        mask = np.full(frame.size, 1 - rarer, np.uint8)
        mask[positions] = rarer
        return cls(layers, mask, head, frame.model, frame.round, about)

    def save(self, path: Path | str) -> int:
        """Writes the file in one step; its length in bytes."""
        from deltamask.files import write_atomically

        data = self.to_bytes()
        write_atomically(Path(path), data)
        return len(data)

    @classmethod
    def load(cls, path: Path | str, limit: int = _MOST_WEIGHTS) -> Adapter:
        """Reads a file; `DataError` where there is none, `WireError` where it is damaged."""
        try:
            return cls.from_bytes(Path(path).read_bytes(), limit)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from None

    def apply(self, module: nn.Module) -> dict[str, Tensor]:
        """The fine-tuned state dict of the base model ``module``, which stays as it is."""
        found = module_fingerprint(module)
        if found != self.model:
            raise MismatchError(
                f"the mask was trained on the base model {self.model:016x}, this one is {found:016x}; "
                "load the checkpoint that the run used, in the same precision"
            )
        tensors = module.state_dict(keep_vars=True)
        state = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        start = 0
        for name, shape in self.layers:
            stop = start + _count(shape)
            if name not in state or tuple(state[name].shape) != shape:
                raise MismatchError(f"the base model has no weight {name} of shape {shape}")
            mask = torch.from_numpy(self.mask[start:stop].reshape(shape)).to(state[name].device)
            for other, tensor in tensors.items():
                if tensor is tensors[name]:  # a shared weight is masked under all of its names
                    state[other] *= mask
            start = stop
        return state


def _count(shape: tuple[int, ...]) -> int:
    out = 1
    for n in shape:
        out *= n
    return out
