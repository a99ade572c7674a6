"""Writing files so that nothing is ever half there."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from deltamask.errors import DataError

__all__ = ["write_atomically"]


def write_atomically(path: Path, data: bytes) -> None:
    """``path`` holds either what it held before or all of ``data``, whenever the machine stops."""
    draft = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):  # on a full disk what is there of it would keep others from their place
            draft.unlink()
        raise DataError(f"cannot write {path}: {error.strerror}") from None
