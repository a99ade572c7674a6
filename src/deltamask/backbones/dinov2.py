"""DINOv2 (Oquab et al. 2023): self-supervised vision transformers; the feature is the normalised class token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from deltamask import hub
from deltamask.backbones.auto import tower
from deltamask.backbones.base import IMAGENET, Tower

__all__ = ["MODELS", "build", "reads"]

MODELS = ("facebook/dinov2-small", "facebook/dinov2-base", "facebook/dinov2-large")

_NATIVE = replace(IMAGENET, crop=224 / 256)


def reads(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` is one of DINOv2."""
    return config.get("model_type") == "dinov2"


def build(source: str | Path | None = None, image_size: int = 0) -> Tower:
    """DINOv2 Small, Base and Large: facebook/dinov2-small, -base, -large."""
    return tower("Dinov2Model", hub.snapshot(str(source or MODELS[0])), _NATIVE, image_size)
