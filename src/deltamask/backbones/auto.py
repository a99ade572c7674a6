"""Any vision model that transformers knows by its ``config.json``; its pooled output is the feature vector."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from deltamask import hub
from deltamask.backbones.base import IMAGENET, Preprocess, Tower, read_config
from deltamask.errors import ConfigError, DataError

__all__ = ["build", "tower"]


def build(source: str | Path | None = None, image_size: int = 0) -> Tower:
    """Any other vision model that transformers knows, by hub id or folder."""
    if source is None:
        raise ConfigError("model 'auto' is for folders and hub ids: give one of them as the model")
    folder = hub.snapshot(str(source))
    side = read_config(folder).get("image_size", IMAGENET.size)
    return tower("AutoModel", folder, IMAGENET.resized(int(side) if isinstance(side, int) else 0), image_size)


def tower(class_name: str, folder: Path, otherwise: Preprocess, image_size: int) -> Tower:
    """The model in ``folder``, loaded by a class of transformers in float32, with its processor's settings.

    Another image size than the model was trained at interpolates its position embeddings, where it has any.
    """
    try:
        import transformers
    except ImportError:
        raise hub.needs("transformers", f"model {folder.name!r}") from None
    preprocess = Preprocess.of_processor(folder, otherwise).resized(image_size)
    try:
        with _quiet():
            model = getattr(transformers, class_name).from_pretrained(
                folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(f"{folder} can't be loaded as {class_name}: {str(error).splitlines()[0]}") from None
    options: dict[str, Any] = {}
    if "interpolate_pos_encoding" in inspect.signature(model.forward).parameters:
        options["interpolate_pos_encoding"] = True
    return Tower(model, preprocess, int(getattr(model.config, "hidden_size", 0) or 0), **options)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's progress bars and its list of the text tower's weights that a vision tower leaves out."""
    from transformers.utils import logging as utilities

    library: Any = utilities  # partly untyped
    before, bars = library.get_verbosity(), library.is_progress_bar_enabled()
    library.set_verbosity(logging.ERROR)
    library.disable_progress_bar()
    try:
        yield
    finally:
        library.set_verbosity(before)
        if bars:
            library.enable_progress_bar()
