"""Images of any size and mode -> one array of bytes, in a file that is made once -> the numbers a backbone takes.

Decoding and resizing cost far more than what is left, so their result is kept: one byte a pixel and channel, in a
memory-mapped file named by a hash of what went in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from deltamask.backbones.base import Preprocess
from deltamask.datasets import arrays
from deltamask.datasets.base import Labelled
from deltamask.errors import DataError

__all__ = ["Pixels", "prepare"]


class Pixels:
    """Images as bytes; what is taken out of it are normalised numbers."""

    def __init__(
        self, array: NDArray[np.uint8], preprocess: Preprocess, rows: NDArray[np.int64] | None = None
    ) -> None:
        self.array = array
        self.preprocess = preprocess
        self.rows = rows
        mean, std = (torch.tensor(x).view(-1, 1, 1) for x in (preprocess.mean, preprocess.std))
        self._scale, self._shift = 1 / (255 * std), mean / std

    def __len__(self) -> int:
        return len(self.array if self.rows is None else self.rows)

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        at: Any = index if isinstance(index, slice) else index.cpu().numpy()
        if self.rows is not None:
            at = self.rows[at]
        return torch.from_numpy(self.array[at]).float() * self._scale - self._shift

    def take(self, rows: NDArray[np.int64]) -> Pixels:
        """Some of the images; nothing is copied."""
        return Pixels(self.array, self.preprocess, rows if self.rows is None else self.rows[rows])


def prepare(
    data: Labelled,
    preprocess: Preprocess,
    rows: NDArray[np.int64] | None,
    folder: Path,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Tensor | Pixels:
    """Some of the images (``rows``; none: all) as a backbone takes them; ``progress`` hears how many are done."""
    if isinstance(data.images, Tensor):
        return _numbers(data.images if rows is None else data.images[torch.from_numpy(rows)], preprocess)
    count = len(data) if rows is None else len(rows)
    shape = (count, preprocess.channels, preprocess.size, preprocess.size)
    chosen = "all" if rows is None else hashlib.sha256(rows.tobytes()).hexdigest()
    # Mean and spread are applied later: what lies in the file does not depend on them.
    about = (data.origin, preprocess.size, preprocess.channels, preprocess.interpolation, preprocess.crop, chosen)
    path = folder / "pixels" / f"{hashlib.sha256(repr(about).encode()).hexdigest()[:32]}.npy"
    kept = arrays.reopened(path, shape, np.uint8)
    if kept is None:
        with arrays.made(path, shape, np.uint8) as out:
            for n in range(count):
                out[n] = _bytes(data, n if rows is None else int(rows[n]), preprocess)
                progress(n + 1, count)
        kept = arrays.reopened(path, shape, np.uint8)
    if kept is None:
        raise DataError(f"{path} was there and is gone; who else clears this cache?")
    return Pixels(kept, preprocess)


def _bytes(data: Labelled, i: int, p: Preprocess) -> NDArray[np.uint8]:
    """One image: its middle square in the size and the channels that the backbone takes."""
    from PIL import Image

    try:
        image: Any = data.images[i]
        if isinstance(image, np.ndarray):
            image = Image.fromarray(image)
        if not min(image.size):
            raise ValueError(f"{image.width} x {image.height} pixels")
        image = _flattened(image).convert("RGB" if p.channels == 3 else "L")
    except (OSError, SyntaxError, ValueError, TypeError, AttributeError, Image.DecompressionBombError) as error:
        raise DataError(f"{data.name}: image {i} can't be read ({error}); remove it, or replace the file") from None
    scale = p.size / (p.crop * min(image.size))
    width, height = (max(p.size, round(side * scale)) for side in image.size)
    filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    image = image.resize((width, height), filters[p.interpolation])
    left, top = (width - p.size) // 2, (height - p.size) // 2
    pixels = np.asarray(image.crop((left, top, left + p.size, top + p.size)), np.uint8)
    return pixels.reshape(p.size, p.size, p.channels).transpose(2, 0, 1)


def _flattened(image: Any) -> Any:
    """The image on white where it is transparent: what lies under a transparent pixel is anything."""
    from PIL import Image

    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode.startswith("I") or image.mode == "F":  # 16 bits and more: Pillow would cut them off
        values = np.asarray(image, np.float64)
        most = float(values.max(initial=0))
        white = next(full for full in (1 if image.mode == "F" else 255, 255, 65535, most) if most <= full)
        return Image.fromarray((values * (255 / white)).clip(0, 255).astype(np.uint8))
    return image


def _numbers(images: Tensor, p: Preprocess) -> Tensor:
    """Small sets that are numbers already: resized, brought to the right number of channels and normalised."""
    if images.shape[-2:] != (p.size, p.size):
        images = F.interpolate(images, size=(p.size, p.size), mode=p.interpolation, align_corners=False)
    if images.shape[1] != p.channels:
        images = images.mean(1, keepdim=True).expand(-1, p.channels, -1, -1)
    if any(p.mean) or any(s != 1 for s in p.std):
        images = (images - torch.tensor(p.mean).view(-1, 1, 1)) / torch.tensor(p.std).view(-1, 1, 1)
    return images.contiguous()
