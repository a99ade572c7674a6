"""What a backbone is, and where it comes from.

A backbone is a module that maps images to features, (batch, channels, size, size) -> (batch, feature_size), with
two attributes: ``feature_size`` and ``preprocess``. It is named by

- one of our own: ``embedded``;
- a hub id or a local folder in the hub's layout: ``facebook/dinov2-small``, ``./vit-small-dinov2``;
- a function of yours that returns a module: ``mypkg.mymodule:build``.

The folder is the registry: a file of this package that defines ``build`` may say with ``reads(config)`` which
configurations of the hub it takes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from deltamask import hub
from deltamask.errors import ConfigError, DataError, unknown_name
from deltamask.registry import members

__all__ = ["IMAGENET", "Preprocess", "Tower", "load", "read_config"]

_PACKAGE = "deltamask.backbones"


@dataclass(frozen=True)
class Preprocess:
    """How images become the numbers that a backbone was trained on.

    The shorter side is resized to ``size / crop`` and the middle square of ``size`` pixels is kept.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    crop: float = 1.0

    @property
    def channels(self) -> int:
        """3 for colour, 1 for grayscale."""
        return len(self.mean)

    def resized(self, size: int) -> Preprocess:
        """The same for images of another size; 0 keeps it.

        Small images have nothing to spare at their edges, so another size than the model's own takes the whole
        square.
        """
        return replace(self, size=size, crop=1.0) if size and size != self.size else self

    @classmethod
    def of_processor(cls, folder: Path, otherwise: Preprocess) -> Preprocess:
        """What ``preprocessor_config.json`` in ``folder`` says; ``otherwise`` for all that it does not."""
        path = folder / "preprocessor_config.json"
        if not path.is_file():
            return otherwise
        said = _json(path)
        try:
            size = _side(said.get("crop_size") or said.get("size"), otherwise.size)
            resized = _side(said.get("size"), size)
            return cls(
                size,
                tuple(float(x) for x in said.get("image_mean", otherwise.mean)),
                tuple(float(x) for x in said.get("image_std", otherwise.std)),
                "bilinear" if said.get("resample", 3) == 2 else "bicubic",
                min(1.0, size / resized) if said.get("do_center_crop", True) else 1.0,
            )
        except (TypeError, ValueError) as error:
            raise DataError(f"{path} is not what an image processor writes ({error})") from None


IMAGENET = Preprocess(224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""The channel statistics of ImageNet, at the most common size."""


class Tower(nn.Module):
    """A model of another library as a backbone: images in, one vector for each out."""

    def __init__(self, model: nn.Module, preprocess: Preprocess, feature_size: int = 0, **options: Any) -> None:
        super().__init__()
        self.model = model.requires_grad_(False).eval()
        self.preprocess = preprocess
        self.options = options
        """Keyword arguments of each forward pass."""
        self.feature_size = feature_size or _features(self)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, size, size) -> (batch, feature_size)."""
        out = self.model(images, **self.options)
        pooled = out if isinstance(out, Tensor) else getattr(out, "pooler_output", None)
        if not isinstance(pooled, Tensor) or pooled.dim() != 2:
            found = tuple(pooled.shape) if isinstance(pooled, Tensor) else type(out).__name__
            raise ConfigError(
                f"{type(self.model).__name__} gives {found}; a backbone gives (batch, features), "
                "or an output with such a pooler_output"
            )
        return pooled


def load(name: str, image_size: int = 0) -> Any:
    """The backbone of that name; see the top of this module. ``image_size`` 0 is the model's own."""
    own: Mapping[str, Callable[..., nn.Module]] = members(_PACKAGE, "build")
    if name in own:
        module = own[name](None, image_size)
    elif ":" in name and not Path(name).exists():
        module = _users(name, image_size)
    elif "/" not in name and not Path(name).exists():
        raise unknown_name("model", name, [*own, "a folder", "a hub id", "MODULE:FUNCTION"])
    else:
        folder = hub.snapshot(name)
        file = folder if folder.is_file() else None
        if file is not None:
            folder = file.parent
        config = read_config(folder)
        readers = members(_PACKAGE, "reads")
        chosen = next((member for member, reads in readers.items() if reads(config)), "auto")
        module = own[chosen](folder, image_size)
    for key in ("feature_size", "preprocess"):
        if not hasattr(module, key):
            raise ConfigError(f"model {name!r} has no {key}")
    return module.eval()


def read_config(folder: Path) -> dict[str, Any]:
    """The ``config.json`` of a folder in the hub's layout."""
    path = folder / "config.json"
    if not path.is_file():
        raise DataError(f"no {path}: a model's folder holds its config.json beside its weights, as the hub has it")
    return _json(path)


def _users(name: str, image_size: int) -> nn.Module:
    """The module that ``package.module:function`` returns."""
    where, _, function = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` would: a user's module lies where the user is
    try:
        build = getattr(import_module(where), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"model {name!r}: {error}; expected MODULE:FUNCTION that can be imported from here"
        ) from None
    module = build()
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model {name!r} returned {type(module).__name__}; expected a torch module")
    preprocess = getattr(module, "preprocess", None) or replace(IMAGENET, size=getattr(module, "image_size", 224))
    return Tower(module, preprocess.resized(image_size), int(getattr(module, "feature_size", 0)))


def _features(tower: Tower) -> int:
    """The length of a feature vector, found by looking at one."""
    p = tower.preprocess
    with torch.no_grad():
        return int(tower(torch.zeros(1, p.channels, p.size, p.size)).shape[1])


def _side(said: Any, otherwise: int) -> int:
    if isinstance(said, dict):
        said = said.get("shortest_edge", said.get("height"))
    return int(said) if said else otherwise


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"{path} holds {type(found).__name__}; expected an object")
    return found
