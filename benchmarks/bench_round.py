"""A round's machinery at full size, without the training itself: sampling, the server, the client, a masked step.

    python benchmarks/bench_round.py [--size 35389440] [--quick] [--out results/bench_round]

writes OUT.json and, from it, OUT.md. One thread but for the training steps; medians of repeated calls after one
to warm up.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mrc
import parts
import steps
import torch
from mrc import Coding, Plain
from parts import CLIENTS, FEW, RATE, SEED, Client, Sampling, Server
from provenance import PEAK, Target, markdown_table, provenance, single_thread, write_json
from reporting import cells, made_by, show_table, show_targets, targets_table, wide_console
from steps import Step

DEFAULT_SIZE = 35_389_440
SERVED = ("rans", "context", "bfuse8", "blockfuse8")
TRAINING_THREADS = 2
SERVER_REPEATS = 3


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=DEFAULT_SIZE, help="masked weights (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a million weights, batches of four, three repeats")
    parser.add_argument("--out", type=Path, default=Path("results/bench_round"), help="default: %(default)s")
    options = parser.parse_args()
    size = 1_000_000 if options.quick else options.size
    repeats = 3 if options.quick else options.repeats
    single_thread()

    theta_g, theta_k = parts.probabilities(size)
    progress = wide_console()
    progress.print("sampling")
    drawn = parts.measure_sampling(theta_g, theta_k, repeats)
    clients, served, trained = [], [], []
    for preset in parts.CHANNELS:
        progress.print(f"client, {preset}")
        clients.append(parts.measure_client(preset, theta_g, theta_k, repeats))
    for codec in SERVED:
        progress.print(f"server, {codec}")
        served += parts.measure_server(codec, theta_g, theta_k, min(SERVER_REPEATS, repeats))
    coded = []
    for what in mrc.CHANNELS:
        progress.print(f"mrc, {what}")
        coded.append(mrc.measure_coding(what, theta_g, theta_k, SEED, min(SERVER_REPEATS, repeats)))
    plain = mrc.measure_plain(theta_g, theta_k, SEED, min(SERVER_REPEATS, repeats))
    del theta_g, theta_k
    torch.set_num_threads(TRAINING_THREADS)
    batch, pairs = (4, 3) if options.quick else (steps.BATCH, 8)
    masked = steps.build()
    for kept in (False, True):
        progress.print(f"training steps, prefix cache {'on' if kept else 'off'}")
        trained.append(steps.measure_steps(masked, batch, pairs, kept))
    report: dict[str, Any] = {
        "provenance": provenance(SEED, ("torch",)) | {"threads": f"1, training steps {TRAINING_THREADS}"},
        "size": size,
        "repeats": repeats,
        "peak": PEAK,
        "sampling": drawn,
        "server": served,
        "client": clients,
        "mrc": coded,
        "mrc_plain": plain,
        "batch": batch,
        "steps": trained,
        "step_parts_s": steps.measure_parts(masked, repeats),
        "targets": targets(drawn, served, trained, coded),
    }
    text = to_markdown(report)
    write_json(options.out.with_suffix(".json"), report)
    options.out.with_suffix(".md").write_text(text)
    show(report)


def targets(drawn: list[Sampling], served: list[Server], trained: list[Step], coded: list[Coding]) -> list[Target]:
    """What a round must reach, each against this very run."""
    found = []
    coupled = drawn[0]
    for what, ns in (
        ("from probabilities", coupled.ns_per_weight),
        ("from thresholds", coupled.from_thresholds_ns or 0.0),
    ):
        found.append(
            Target(f"coupled sampling of both masks and their delta, {what}", "<= 2 ns/weight", f"{ns:.2f}", ns <= 2)
        )
    for codec in SERVED:
        rows = [row for row in served if row.codec == codec]
        slowest = max(row.seconds for row in rows)
        by_rule = ", ".join(f"{row.rule} {row.seconds:.2f} s" for row in rows)
        found.append(
            Target(f"server, {CLIENTS} clients, {codec}: decode + aggregate", "<= 2 s", by_rule, slowest <= 2)
        )
    growth = max(row.numpy_mib_all / row.numpy_mib_few for row in served)
    found.append(
        Target(f"server, memory of {CLIENTS} clients over {FEW}", "<= 1.05 x", f"{growth:.3f} x", growth <= 1.05)
    )
    for step in trained:
        name = f"masked over plain training step, prefix cache {'on' if step.prefix_cache else 'off'}"
        found.append(Target(name, "<= 1.15 x", f"{step.ratio:.3f} x", step.ratio <= 1.15))
    encode, decode = (max(times) for times in zip(*((row.encode_s, row.decode_s) for row in coded), strict=True))
    return [
        *found,
        Target("mrc encode, 256 candidates", "<= 2 s", f"{encode:.2f} s", encode <= 2),
        Target("mrc decode", "<= 0.3 s", f"{decode:.3f} s", decode <= 0.3),
    ]


SAMPLING: dict[str, Callable[[Sampling], str]] = {
    "sampling": lambda row: row.what,
    "flips": lambda row: f"{row.flips:,}",
    "ns/weight": lambda row: f"{row.ns_per_weight:.2f}",
    "min": lambda row: f"{row.ns_per_weight_min:.2f}",
    "from thresholds": lambda row: "" if row.from_thresholds_ns is None else f"{row.from_thresholds_ns:.2f}",
}
SERVER: dict[str, Callable[[Server], str]] = {
    "server": lambda row: f"{row.codec}, {row.rule}",
    "s": lambda row: f"{row.seconds:.2f}",
    "min": lambda row: f"{row.seconds_min:.2f}",
    "clients/s": lambda row: f"{row.clients_per_second:.1f}",
    "decode s": lambda row: f"{row.stages['decode']:.2f}",
    "aggregate s": lambda row: f"{row.stages['aggregate']:.2f}",
    "bytes/client": lambda row: f"{row.payload_bytes // CLIENTS:,}",
    f"MiB, {FEW} clients": lambda row: f"{row.numpy_mib_few:.0f}",
    f"MiB, {CLIENTS} clients": lambda row: f"{row.numpy_mib_all:.0f}",
    "resident MiB": lambda row: "" if row.resident_mib_all is None else f"{row.resident_mib_all:.0f}",
}
CLIENT: dict[str, Callable[[Client], str]] = {
    "client, preset": lambda row: row.preset,
    "flips": lambda row: f"{row.flips:,}",
    "bytes": lambda row: f"{row.payload_bytes:,}",
    **{
        f"{stage} s": lambda row, stage=stage: f"{row.stages[stage]:.3f}"
        for stage in ("sampling", "ranking", "coding", "image")
    },
    "in one call s": lambda row: f"{row.whole_s:.3f}",
}
CODING: dict[str, Callable[[Coding], str]] = {
    "mrc": lambda row: row.what,
    "bytes": lambda row: f"{row.payload_bytes:,}",
    "divergence, bytes": lambda row: f"{row.divergence_bytes:,.0f}",
    "encode s": lambda row: f"{row.encode_s:.2f}",
    "min": lambda row: f"{row.encode_min_s:.2f}",
    "ns/candidate and weight": lambda row: f"{row.encode_ns:.3f}",
    "decode s": lambda row: f"{row.decode_s:.3f}",
    "vote s": lambda row: f"{row.vote_s:.3f}",
    "encode MiB": lambda row: "" if row.encode_mib is None else f"{row.encode_mib:.0f}",
    "decode MiB": lambda row: "" if row.decode_mib is None else f"{row.decode_mib:.0f}",
}
PLAIN: dict[str, Callable[[Plain], str]] = {
    "what one would write first": lambda row: row.what,
    "weights": lambda row: f"{row.weights:,}",
    "ns/candidate and weight": lambda row: f"{row.encode_ns:.3f}",
    "all weights, s": lambda row: f"{row.whole_s:.1f}",
}
STEPS: dict[str, Callable[[Step], str]] = {
    "prefix cache": lambda row: "on" if row.prefix_cache else "off",
    "plain s": lambda row: f"{row.plain_s:.3f}",
    "masked s": lambda row: f"{row.masked_s:.3f}",
    "plain min": lambda row: f"{row.plain_min_s:.3f}",
    "masked min": lambda row: f"{row.masked_min_s:.3f}",
    "masked / plain": lambda row: f"{row.ratio:.3f}",
}


def tables(report: dict[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
    """(title, head, rows) of all tables."""
    extra = [[name, f"{1000 * spent:.1f}"] for name, spent in report["step_parts_s"].items()]
    return [
        (f"Sampling, {report['size']:,} weights", list(SAMPLING), cells(SAMPLING, report["sampling"])),
        (f"Server, {CLIENTS} clients", list(SERVER), cells(SERVER, report["server"])),
        ("Client", list(CLIENT), cells(CLIENT, report["client"])),
        ("Minimal random coding, 256 candidates", list(CODING), cells(CODING, report["mrc"])),
        ("Minimal random coding, plainly", list(PLAIN), cells(PLAIN, report["mrc_plain"])),
        (f"Training step, ViT-B/32, batch {report['batch']}", list(STEPS), cells(STEPS, report["steps"])),
        ("What a mask adds to a step", ["part", "ms"], extra),
    ]


def to_markdown(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [
        "# A round",
        "",
        f"{report['size']:,} masked weights; probabilities move by {RATE:.0%} on average. "
        f"Medians of {report['repeats']} calls (server, mrc: of {min(SERVER_REPEATS, report['repeats'])}; stages of "
        f"the client: minima) on one thread, training steps on {TRAINING_THREADS}, plain and masked in turns. "
        f"MiB: peak of what NumPy allocates; resident: {report['peak']}.",
        "",
    ]
    for title, head, rows in tables(report):
        lines += [f"## {title}", "", markdown_table(head, rows), ""]
    lines += ["## Targets", "", targets_table(report["targets"]), ""]
    return "\n".join([*lines, made_by("bench_round.py", report["provenance"]), ""])


def show(report: dict[str, Any]) -> None:
    """The report on the terminal."""
    console = wide_console()
    for title, head, rows in tables(report):
        show_table(console, title, head, rows)
    show_targets(console, report["targets"])


if __name__ == "__main__":
    main()
