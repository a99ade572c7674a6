"""EDEN and DRIVE beside srrcomp, the package of their authors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from checks import Check, close, within
from numpy.typing import NDArray

from deltamask.kernels.rotation import rotate, rotate_back
from deltamask.updates.drive import Drive
from deltamask.updates.eden import Eden, centroids, distortion

__all__ = ["updates"]

SEEDS = 20
ROW = 8192
SIZE = 4 * ROW
KEYS = 200

VECTORS: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "heavy tails": lambda rng, size: rng.standard_t(3, size),
}

Vector = NDArray[np.float32]
Estimate = Callable[[Vector, int], Vector]


def updates() -> Iterator[Check]:
    """All comparisons with srrcomp."""
    import srrcomp
    import torch

    peer = srrcomp.Eden()

    def theirs(bits: int) -> Estimate:
        return lambda x, key: peer.decompress(peer.compress(torch.from_numpy(x), bits, key)).numpy()

    yield from _same_steps(peer)
    names = {**{f"eden:{bits}": (Eden(bits), bits) for bits in (1, 2, 3, 4)}, "drive": (Drive(), 1)}
    for name, (code, bits) in names.items():
        for vector, draw in VECTORS.items():
            yield within(
                0.03,
                "srrcomp",
                name,
                f"squared error, {vector}",
                _error(_ours(code), draw),
                _error(theirs(bits), draw),
                f"mean of {SEEDS} vectors of {SIZE:,}; its standard error is below 1%, as is what the theory, which "
                "is for many dimensions, leaves out",
                distortion(bits),
            )
        yield within(
            0.1,
            "srrcomp",
            name,
            f"squared error of the mean over {KEYS} keys, times {KEYS}",
            _lean(_ours(code)),
            _lean(theirs(bits)),
            "without bias it is the error of one estimate; its own standard error is 2%",
            distortion(bits),
        )
    for size in (100_000, 120_000):
        x = np.random.default_rng(0).standard_normal(size).astype(np.float32)
        packed = sum(4 * part["packed_bins"].numel() + 4 for part in peer.compress(torch.from_numpy(x), 1, 0))
        ours, other = 8 * len(Eden(1).encode(x, 0, 1)) / size, 8 * packed / size
        yield Check(
            "srrcomp",
            "eden:1",
            f"bits a number, {size:,} numbers",
            ours,
            other,
            None,
            "at most 0.5% more",
            "a scale for each 8,192 numbers is 0.4%; srrcomp has few of them, and pads by up to a tenth",
            ours <= 1.005 * other,
        )


def _same_steps(peer: Any) -> Iterator[Check]:
    """Step by step, where random numbers do not come into it."""
    import torch

    x = np.random.default_rng(1).standard_t(3, (4, ROW)).astype(np.float32)
    signs = np.zeros((4, ROW), np.float32)
    signs[:, 0] = np.sqrt(ROW)  # the transform of this is all ones
    rotate_back(np.uint64(7), 0, signs)
    y = x.copy()
    rotate(np.uint64(7), 0, y)
    rows = [peer.Hadamard(torch.from_numpy(a * s)).numpy() / np.sqrt(ROW) for a, s in zip(x, signs, strict=True)]
    yield close(
        1e-5,
        "srrcomp",
        "rotation",
        "rows rotated with the same signs: largest difference",
        float(np.abs(np.array(rows) - y).max() / np.abs(y).max()),
        "float32 sums of 8,192 numbers",
    )
    for bits in (1, 2, 3, 4, 5, 6):
        theirs = peer.centroids[bits].numpy()
        yield close(
            1e-4,
            "srrcomp",
            f"eden:{bits}",
            "centroids: largest difference",
            float(np.abs(theirs - centroids(bits)).max()),
            "each table ends its iteration somewhere",
        )
    for bits in (1, 2, 3, 4):
        data = Eden(bits).encode(x.reshape(-1), 7, 0)
        scales = np.frombuffer(data[:16], "<f4")
        flags = np.unpackbits(np.frombuffer(data[16:], np.uint8), bitorder="little").reshape(4, ROW, bits)
        codes = (flags.astype(int) << np.arange(bits)).sum(2)
        found = [peer._quantize(torch.from_numpy(row), bits) for row in y]
        other = sum(int((bins.numpy() != code).sum()) for (bins, _), code in zip(found, codes, strict=True))
        yield close(
            1e-4,
            "srrcomp",
            f"eden:{bits}",
            "codes of a rotated row: share that differs",
            other / codes.size,
            "numbers at an edge, by one unit of float32",
        )
        yield close(
            1e-4,
            "srrcomp",
            f"eden:{bits}",
            "scale of a rotated row: largest difference",
            float(max(abs(float(scale) / ours - 1) for (_, scale), ours in zip(found, scales, strict=True))),
            "float32 sums, and the differences of codes and centroids",
        )


def _ours(code: Eden) -> Estimate:
    return lambda x, key: code.decode(code.encode(x, key, 0), x.size, key)


def _error(estimate: Estimate, draw: Callable[[np.random.Generator, int], NDArray[np.float64]]) -> float:
    """Mean of |estimate - x|^2 / |x|^2."""
    found = []
    for seed in range(SEEDS):
        x = draw(np.random.default_rng(seed), SIZE).astype(np.float32)
        found.append(_squares(estimate(x, seed) - x) / _squares(x))
    return float(np.mean(found))


def _lean(estimate: Estimate) -> float:
    """The squared error of a mean of many estimates of one vector, times their number, over |x|^2."""
    x = np.random.default_rng(2).standard_t(3, ROW).astype(np.float32)
    mean = sum(estimate(x, key).astype(np.float64) for key in range(KEYS)) / KEYS
    return KEYS * _squares(mean - x) / _squares(x)


def _squares(x: NDArray[np.floating]) -> float:
    return float((x.astype(np.float64) ** 2).sum())
