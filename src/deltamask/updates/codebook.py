"""Numbers as members of a small codebook: k-means of one dimension, and the labels bit by bit at their entropy.

The labels are sent as one set for each of their bits, highest first, each through the code that knows the bits above
it (`deltamask.codecs.context`): all in all the entropy of the labels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from deltamask import codecs
from deltamask.codecs.base import Reader, varint
from deltamask.errors import MalformedError

__all__ = ["cluster", "labels_from_bytes", "labels_to_bytes", "nearest", "read_codebook"]

_CODEC = "context"
_ITERATIONS = 100
_BINS = 4096

Codebook = NDArray[np.float32]
Labels = NDArray[np.uint8]


def cluster(numbers: Codebook, centres: int) -> Codebook:
    """The centres of Lloyd's algorithm, ascending; at most so many, all different.

    It starts where many centres would end up: as dense as the cube root of the numbers' density.
    """
    ordered = np.sort(numbers).astype(np.float64)
    sums = np.concatenate(([0.0], np.cumsum(ordered)))
    counts, edges = np.histogram(ordered, _BINS)
    mass = np.concatenate(([0.0], np.cumsum(np.cbrt(counts))))
    found = np.unique(np.interp((np.arange(centres) + 0.5) / centres * mass[-1], mass, edges))
    for _ in range(_ITERATIONS):
        cuts = np.searchsorted(ordered, (found[1:] + found[:-1]) / 2)
        cuts = np.concatenate(([0], cuts, [ordered.size]))
        held = np.diff(cuts)
        better = np.diff(sums[cuts])[held > 0] / held[held > 0]  # one that nobody is close to is no use
        done = better.size == found.size and np.abs(better - found).max() <= 1e-6 * np.abs(found).max()
        found = better
        if done:
            break
    return np.unique(found.astype(np.float32))


def nearest(numbers: Codebook, centres: Codebook) -> NDArray[np.int64]:
    """For each number the position of the nearest of ascending ``centres``; halfway, the lower one."""
    edges = (centres[1:] + centres[:-1]) / 2
    out: NDArray[np.int64] = np.searchsorted(edges, numbers)
    return out


def read_codebook(reader: Reader, most: int) -> Codebook:
    """A count and so many float32 numbers, finite and ascending."""
    count = reader.varint(most)
    centres = np.frombuffer(reader.take(4 * count), "<f4").astype(np.float32)
    if not count or not np.isfinite(centres).all() or not (np.diff(centres) > 0).all():
        raise MalformedError(f"{reader.what}: {count} centres; expected finite numbers in ascending order")
    return centres


def labels_to_bytes(labels: Labels, count: int) -> bytes:
    """The payload of labels below ``count``."""
    parts = []
    prefix: Labels = np.zeros(labels.size, np.uint8)
    for bit in range((count - 1).bit_length() - 1, -1, -1):
        here = (labels >> bit & 1).astype(np.uint8)
        plane = codecs.get(_CODEC).encode(np.flatnonzero(here), labels.size, prefix)
        parts.append(varint(len(plane)) + plane)
        prefix = (2 * prefix + here).astype(np.uint8)
    return b"".join(parts)


def labels_from_bytes(reader: Reader, size: int, count: int) -> Labels:
    """The inverse of `labels_to_bytes` for untrusted bytes."""
    prefix: Labels = np.zeros(size, np.uint8)
    for _ in range((count - 1).bit_length()):
        plane = reader.take(reader.varint(len(reader.data)))
        here = np.zeros(size, np.uint8)
        here[codecs.get(_CODEC).decode(plane, size, prefix)] = 1
        prefix = (2 * prefix + here).astype(np.uint8)
    if size and int(prefix.max()) >= count:
        raise MalformedError(f"{reader.what}: label {int(prefix.max())} of {count} centres")
    return prefix
