"""Every codec, and what others offer, on one uniform set of positions: bytes, time, memory, wrong positions.

    python benchmarks/bench_codecs.py [--size 35389440] [--rate 0.01] [--quick] [--out results/bench_codecs]

writes OUT.json and, from it, OUT.md. One thread; medians of repeated calls after one to warm up.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray
from peers import Peer, peers
from provenance import PEAK, Target, markdown_table, peak_mib, provenance, seconds, single_thread, write_json
from reporting import cells, made_by, show_targets, targets_table, wide_console
from rich.table import Table

from deltamask import codecs

SEED = 20240613
DEFAULT_SIZE = 35_389_440


@dataclass(frozen=True)
class Row:
    """What was measured of one codec or peer."""

    name: str
    peer: bool
    exact: bool
    payload_bytes: int
    bits_per_key: float
    bits_per_position: float
    over_entropy: float
    encode_ns_per_key: float
    encode_ns_per_key_min: float
    decode_ns_per_position: float | None
    decode_ns_per_position_min: float | None
    decode_ns_per_key: float | None
    false_positive_rate: float | None
    wrong_positions: int | None
    encode_peak_mib: float | None
    decode_peak_mib: float | None
    note: str


COLUMNS: dict[str, Callable[[Row], str]] = {
    "codec": lambda row: row.name,
    "bits/key": lambda row: f"{row.bits_per_key:.3f}",
    "bits/position": lambda row: f"{row.bits_per_position:.5f}",
    "x entropy": lambda row: f"{row.over_entropy:.4f}",
    "wrong": lambda row: _or(row.wrong_positions, "d"),
    "false pos.": lambda row: "" if row.exact else _or(row.false_positive_rate, ".2e"),
    "encode ns/key": lambda row: f"{row.encode_ns_per_key:.1f}",
    "decode ns/position": lambda row: _or(row.decode_ns_per_position, ".3f"),
    "decode ns/key": lambda row: _or(row.decode_ns_per_key, ".1f"),
    "encode MiB": lambda row: _or(row.encode_peak_mib, ".1f"),
    "decode MiB": lambda row: _or(row.decode_peak_mib, ".1f"),
}


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=DEFAULT_SIZE, help="positions (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.01, help="share of them in the set (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=7, help="timed calls (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="two million positions, five repeats")
    parser.add_argument("--out", type=Path, default=Path("results/bench_codecs"), help="default: %(default)s")
    options = parser.parse_args()
    size = 2_000_000 if options.quick else options.size
    repeats = 5 if options.quick else options.repeats
    single_thread()

    keys = uniform(round(options.rate * size), size)
    rows = []
    for name in codecs.names():
        print(name, flush=True)
        rows.append(measure_codec(codecs.get(name), keys, size, repeats))
    for peer in peers(keys, size):
        print(peer.name, flush=True)
        rows.append(measure_peer(peer, keys, size, repeats))
    entropy_bits = log2_binomial(size, len(keys))
    slots = next(row.payload_bytes for row in rows if row.name == "bfuse8")
    report: dict[str, Any] = {
        "provenance": provenance(SEED, ("pyfusefilter", "zstandard", "constriction")),
        "size": size,
        "count": len(keys),
        "repeats": repeats,
        "peak": PEAK,
        "entropy_bits_per_key": entropy_bits / len(keys),
        "entropy_bits_per_position": entropy_bits / size,
        "four_random_loads_ns": four_random_loads(slots, repeats),
        "rows": [asdict(row) for row in rows],
    }
    report["targets"] = [asdict(target) for target in targets(rows, report["four_random_loads_ns"])]
    write_json(options.out.with_suffix(".json"), report)
    options.out.with_suffix(".md").write_text(to_markdown(report))
    show(report)


def uniform(count: int, size: int) -> NDArray[np.uint32]:
    """A uniform random set of ``count`` positions below ``size``."""
    return np.sort(np.random.default_rng(SEED).choice(size, count, replace=False)).astype(np.uint32)


def log2_binomial(size: int, count: int) -> float:
    """Bits that a set of ``count`` out of ``size`` needs at least, on average."""
    return (math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)) / math.log(2)


def measure_codec(codec: codecs.Codec, keys: NDArray[np.uint32], size: int, repeats: int) -> Row:
    """One codec, without context."""
    peer = Peer(
        codec.name,
        codec.exact,
        encode=lambda: codec.encode(keys, size),
        payload_bytes=len,
        decode=lambda data: codec.decode(data, size),
        note="without context" if codec.uses_context else "",
    )
    return measure_peer(peer, keys, size, repeats, is_peer=False)


def measure_peer(peer: Peer, keys: NDArray[np.uint32], size: int, repeats: int, is_peer: bool = True) -> Row:
    """One way to send ``keys``; a set that comes back with keys missing is an error."""
    encode, encode_min, payload = seconds(peer.encode, repeats)
    length = peer.payload_bytes(payload)
    decode = decode_min = decode_peak = rate = wrong = None
    queries = size if peer.sample is None else len(peer.sample)
    if peer.decode is not None:
        ask = peer.decode
        decode, decode_min, found = seconds(lambda: ask(payload), repeats)
        decode_peak = peak_mib(lambda: ask(payload))
        right = keys if peer.sample is None else np.intersect1d(keys, peer.sample)
        if not np.isin(right, found).all():
            raise RuntimeError(f"{peer.name}: positions are missing")
        rate = (len(found) - len(right)) / (queries - len(right))
        wrong = len(found) - len(right) if peer.sample is None else None
    return Row(
        name=peer.name,
        peer=is_peer,
        exact=peer.exact,
        payload_bytes=length,
        bits_per_key=8 * length / len(keys),
        bits_per_position=8 * length / size,
        over_entropy=8 * length / log2_binomial(size, len(keys)),
        encode_ns_per_key=encode / len(keys) * 1e9,
        encode_ns_per_key_min=encode_min / len(keys) * 1e9,
        decode_ns_per_position=None if decode is None else decode / queries * 1e9,
        decode_ns_per_position_min=None if decode_min is None else decode_min / queries * 1e9,
        decode_ns_per_key=None if decode is None else decode / queries * size / len(keys) * 1e9,
        false_positive_rate=rate,
        wrong_positions=wrong,
        encode_peak_mib=peak_mib(peer.encode),
        decode_peak_mib=decode_peak,
        note=peer.note,
    )


@nb.njit(nogil=True)
def _loads(data: NDArray[np.uint8], places: NDArray[np.uint32], out: NDArray[np.uint8], rounds: int) -> None:
    a, b, c, d = places[0], places[1], places[2], places[3]
    for r in range(rounds):
        # Another window each time, so that the places do not come to lie in the first-level cache.
        window = data[np.uint64(r) * np.uint64(4099) % np.uint64(len(data) // 2) :]
        for j in range(len(out)):
            out[j] = window[a[j]] ^ window[b[j]] ^ window[c[j]] ^ window[d[j]]


def four_random_loads(size: int, repeats: int) -> float:
    """Nanoseconds for four bytes from anywhere in ``size`` bytes: what a query of a standard filter can't beat."""
    rng = np.random.default_rng(SEED)
    data = rng.integers(0, 256, size, dtype=np.uint8)
    places = rng.integers(0, size - size // 2, (4, 1024), dtype=np.uint32)
    taken, _, _ = seconds(lambda: _loads(data, places, np.empty(1024, np.uint8), 16384), repeats)
    return taken / (1024 * 16384) * 1e9


def targets(rows: list[Row], floor_ns: float) -> list[Target]:
    """What codecs must reach, each against this very run."""
    by_name = {row.name: row for row in rows}
    fuse, block = by_name["bfuse8"], by_name["blockfuse8"]
    python, c = by_name.get("pyfusefilter Fuse8"), by_name.get("C: binary_fuse8_populate")
    near = [row for row in rows if row.exact and not row.peer and row.over_entropy <= 1.005]
    exact = min(near or [by_name["rice"]], key=lambda row: row.encode_ns_per_key)
    build, query = fuse.encode_ns_per_key, fuse.decode_ns_per_position or math.nan
    found = [Target("bfuse8, build", "<= 45 ns/key", f"{build:.1f}", build <= 45)]
    if c is not None:
        for row, what in ((fuse, "4-wise"), (by_name["bfuse8x3"], "3-wise")):
            ratio = row.encode_ns_per_key / c.encode_ns_per_key
            goal = Target(
                f"{row.name} ({what}), build", "<= 1.2 x the C library's 3-wise", f"{ratio:.2f} x", ratio <= 1.2
            )
            found.append(goal)
    if python is not None:
        ratio = python.encode_ns_per_key / build
        found.append(Target("bfuse8, build", ">= 8 x faster than pyfusefilter", f"{ratio:.1f} x", ratio >= 8))
    what = f"bfuse8, dense query (four random loads take {floor_ns:.2f} ns here)"
    found.append(Target(what, "<= 1.5 ns/position", f"{query:.2f}", query <= 1.5))
    if python is not None:
        ratio = (python.decode_ns_per_position or math.nan) / query
        found.append(
            Target("bfuse8, dense query", ">= 250 x faster than pyfusefilter", f"{ratio:.0f} x", ratio >= 250)
        )
    blocks, per_key = block.decode_ns_per_position or math.nan, exact.decode_ns_per_key or math.nan
    return [
        *found,
        Target("blockfuse8, dense query", "<= 0.25 ns/position", f"{blocks:.3f}", blocks <= 0.25),
        Target(
            f"{exact.name}, size", "<= 1.005 x entropy", f"{exact.over_entropy:.4f} x", exact.over_entropy <= 1.005
        ),
        Target(
            f"{exact.name}, encode", "<= 5 ns/key", f"{exact.encode_ns_per_key:.1f}", exact.encode_ns_per_key <= 5
        ),
        Target(f"{exact.name}, decode", "<= 10 ns/key", f"{per_key:.1f}", per_key <= 10),
    ]


def to_markdown(report: dict[str, Any]) -> str:
    """The report for people."""
    rows = [Row(**row) for row in report["rows"]]
    goals = [Target(**target) for target in report["targets"]]
    notes = [f"- {row.name}: {row.note}" for row in rows if row.note]
    return "\n".join(
        [
            "# Codecs",
            "",
            f"{report['count']} uniform random positions out of {report['size']}; entropy is "
            f"{report['entropy_bits_per_key']:.4f} bits/key, "
            f"{report['entropy_bits_per_position']:.5f} bits/position. "
            f"Medians of {report['repeats']} calls on one thread. Memory: {report['peak']}.",
            "",
            markdown_table(list(COLUMNS), cells(COLUMNS, rows)),
            "",
            *notes,
            "",
            "## Targets",
            "",
            targets_table(goals),
            "",
            made_by("bench_codecs.py", report["provenance"]),
            "",
        ]
    )


def show(report: dict[str, Any]) -> None:
    """The report on the terminal."""
    console = wide_console()
    table = Table(title=f"{report['count']} of {report['size']} positions")
    for i, name in enumerate(COLUMNS):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    for entry in report["rows"]:
        row = Row(**entry)
        table.add_row(*(cell(row) for cell in COLUMNS.values()), style="dim" if row.peer else None)
    console.print(table)
    show_targets(console, [Target(**entry) for entry in report["targets"]])


def _or(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


if __name__ == "__main__":
    main()
