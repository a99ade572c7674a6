"""CLIP (Radford et al. 2021): the vision tower alone; the feature is the normalised class token."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deltamask import hub
from deltamask.backbones.auto import tower
from deltamask.backbones.base import Preprocess, Tower

__all__ = ["MODELS", "build", "reads"]

MODELS = ("openai/clip-vit-base-patch32", "openai/clip-vit-large-patch14")

_NATIVE = Preprocess(224, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def reads(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` is one of CLIP, with or without its text tower."""
    return config.get("model_type") in ("clip", "clip_vision_model")


def build(source: str | Path | None = None, image_size: int = 0) -> Tower:
    """CLIP's vision towers: openai/clip-vit-base-patch32 and openai/clip-vit-large-patch14."""
    return tower("CLIPVisionModel", hub.snapshot(str(source or MODELS[0])), _NATIVE, image_size)
