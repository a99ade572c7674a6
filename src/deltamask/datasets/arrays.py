"""Arrays that are costly to make, kept in memory-mapped files that appear in one step or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deltamask.errors import ConfigError

__all__ = ["cache_folder", "made", "reopened"]


def cache_folder(asked: str | None) -> Path:
    """Where arrays are kept: as asked, else by DELTAMASK_CACHE, else in the user's cache."""
    if asked:
        return Path(asked).expanduser()
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(os.environ.get("DELTAMASK_CACHE") or Path(home) / "deltamask")


def reopened(path: Path, shape: tuple[int, ...], dtype: Any) -> NDArray[Any] | None:
    """The array in ``path``; none where there is none, or one of another shape, which is removed.

    Pages come from the file when they are read, and processes share them. Writing changes memory alone.
    """
    try:
        kept: NDArray[Any] = np.load(path, mmap_mode="c")
        if kept.shape == shape and kept.dtype == dtype:
            return kept
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError):
        pass  # not one of ours, or cut off by a full disk
    with suppress(OSError):  # writing will say what is wrong
        path.unlink()
    return None


@contextmanager
def made(path: Path | None, shape: tuple[int, ...], dtype: Any) -> Iterator[NDArray[Any]]:
    """An array to fill; after the block it is in ``path``, or in memory alone for none."""
    if path is None:
        yield np.empty(shape, dtype)
        return
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        out: np.memmap[Any, Any] = np.lib.format.open_memmap(draft, mode="w+", dtype=dtype, shape=shape)
        yield out
        out.flush()
        draft.replace(path)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(f"cannot keep arrays in {path.parent} ({why}); set data.cache_dir=FOLDER") from None
    finally:
        with suppress(OSError):
            draft.unlink()
