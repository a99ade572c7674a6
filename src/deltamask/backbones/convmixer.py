"""ConvMixer (Trockman and Kolter 2022): depthwise and pointwise convolutions over patches, nothing else.

The parameters have the names of timm's published checkpoints, so that these load as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from deltamask import hub
from deltamask.backbones.base import IMAGENET, Preprocess, read_config
from deltamask.errors import DataError

__all__ = ["MODELS", "ConvMixer", "build", "reads"]

MODELS = ("timm/convmixer_768_32.in1k",)

_KERNELS = {(768, 32): (7, 7, nn.ReLU), (1536, 20): (9, 7, nn.GELU), (1024, 20): (9, 14, nn.GELU)}
"""Kernel, patch and activation of the published (width, depth)."""
_NATIVE = replace(IMAGENET, crop=0.96)


class Residual(nn.Module):
    """``x + fn(x)``."""

    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fn(x) + x
        return out


class ConvMixer(nn.Module):
    """Patches, ``depth`` blocks and the mean over all places; the classifier of the checkpoint is left out."""

    def __init__(
        self, width: int, depth: int, kernel: int = 7, patch: int = 7, activation: type[nn.Module] = nn.ReLU
    ) -> None:
        super().__init__()
        self.feature_size = width
        self.preprocess = _NATIVE
        self.stem = nn.Sequential(nn.Conv2d(3, width, patch, stride=patch), activation(), nn.BatchNorm2d(width))
        self.blocks = nn.Sequential(
            *[
                nn.Sequential(
                    Residual(
                        nn.Sequential(
                            nn.Conv2d(width, width, kernel, groups=width, padding="same"),
                            activation(),
                            nn.BatchNorm2d(width),
                        )
                    ),
                    nn.Conv2d(width, width, 1),
                    activation(),
                    nn.BatchNorm2d(width),
                )
                for _ in range(depth)
            ]
        )

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 3, size, size) -> (batch, width)."""
        out: Tensor = self.blocks(self.stem(images)).mean((2, 3))
        return out


def reads(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` is one that timm wrote for a ConvMixer."""
    return str(config.get("architecture", "")).startswith("convmixer_")


def build(source: str | Path | None = None, image_size: int = 0) -> ConvMixer:
    """ConvMixer: timm/convmixer_768_32.in1k."""
    folder = hub.snapshot(str(source or MODELS[0]))
    config = read_config(folder)
    name = str(config.get("architecture"))
    found = re.fullmatch(r"convmixer_(\d+)_(\d+)", name)
    if found is None:
        raise DataError(f"{folder}: architecture {name!r}; expected convmixer_WIDTH_DEPTH")
    width, depth = int(found[1]), int(found[2])
    kernel, patch, activation = _KERNELS.get((width, depth), (7, 7, nn.ReLU))
    model = ConvMixer(width, depth, kernel, patch, activation)
    model.preprocess = _preprocess(config.get("pretrained_cfg", {})).resized(image_size)
    weights = folder / "model.safetensors"
    try:
        state = load_file(weights)
        state = {key: t.float() if t.is_floating_point() else t for key, t in state.items()}
        model.load_state_dict({key: t for key, t in state.items() if not key.startswith("head.")})
    except (OSError, SafetensorError, RuntimeError) as error:
        raise DataError(f"{weights} does not fit {name}: {str(error).splitlines()[0]}") from None
    return model


def _preprocess(said: Mapping[str, Any]) -> Preprocess:
    size = said.get("input_size", (3, _NATIVE.size, _NATIVE.size))[-1]
    return Preprocess(
        int(size),
        tuple(said.get("mean", _NATIVE.mean)),
        tuple(said.get("std", _NATIVE.std)),
        "bilinear" if said.get("interpolation") == "bilinear" else "bicubic",
        float(said.get("crop_pct", _NATIVE.crop)),
    )
