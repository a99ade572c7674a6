"""Files appear whole or not at all."""

from __future__ import annotations

import errno
import os

import pytest

from deltamask.errors import DataError
from deltamask.files import write_atomically


def test_a_disk_that_is_full_keeps_what_was_there_and_nothing_else(tmp_path, monkeypatch) -> None:
    path = tmp_path / "new" / "file"
    write_atomically(path, b"whole")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"cannot write .*file: No space left on device"):
        write_atomically(path, b"half")
    assert [p.name for p in path.parent.iterdir()] == ["file"]
    assert path.read_bytes() == b"whole"


def test_a_folder_that_cannot_be(tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="cannot write"):
        write_atomically(tmp_path / "file" / "in it", b"data")
