"""DRIVE (Vargaftik et al. 2021): fine-tuning with the signs of randomly rotated changes."""

from __future__ import annotations

from deltamask.methods.compressed import Compressed
from deltamask.updates.drive import Drive

__all__ = ["METHOD", "DriveFineTune"]


class DriveFineTune(Compressed):
    """One bit a number."""

    summary = "signs of rotated changes of weights (Vargaftik et al. 2021)"

    def code(self) -> Drive:
        return Drive()


METHOD = DriveFineTune
