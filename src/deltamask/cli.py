"""The command line: thin, every command a few calls into the package."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from deltamask import __version__
from deltamask.errors import ConfigError, DataError, DeltaMaskError, unknown_name

__all__ = ["app", "main"]

app = typer.Typer(
    name="deltamask",
    help="Federated fine-tuning of foundation models over thin uplinks: send masks, at hundredths of a bit a weight.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
console = Console(stderr=True)
screen = Console()
if not screen.is_terminal:
    screen.width = 120  # a log or a pipe has no width of its own

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output, nothing else.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. channel.codec=bfuse8. May be repeated."),
]
Model = Annotated[str | None, typer.Option(help="Backbone: a name, a folder, a hub id or MODULE:FUNCTION.")]
Dataset = Annotated[str | None, typer.Option(help="Data set: a name, a folder or a hub id.")]
Clients = Annotated[int | None, typer.Option(help="Number of clients.")]
Rounds = Annotated[int | None, typer.Option(help="Number of rounds.")]
Seed = Annotated[int | None, typer.Option(help="Seed of everything that is random.")]
ConfigFile = Annotated[Path | None, typer.Argument(help="TOML file of settings; none: the embedded default.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out from its last whole round.")]


def _overrides(sets: list[str] | None, **named: Any) -> list[str]:
    """Settings that have an option of their own, and then those of --set."""
    return [f"{key}={json.dumps(value)}" for key, value in named.items() if value is not None] + (sets or [])


def _epilog(*keys: str) -> str:
    from deltamask.config import settings

    lines = [f"- `{key}` = `{default}`: {text}" for key, default, text in settings() if not keys or key in keys]
    return "**Settings** (in TOML or with --set):\n\n" + "\n".join(lines)


@app.command(epilog=_epilog())
def run(
    config: ConfigFile = None,
    model: Model = None,
    dataset: Dataset = None,
    clients: Clients = None,
    rounds: Rounds = None,
    seed: Seed = None,
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="Folder for results; a run in it is never overwritten.")] = Path(
        "runs/run"
    ),
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Fine-tune by one method and leave a trained mask and a report.

    Without a file this is the embedded default: a small vision transformer, handwritten digits, 10 clients.
    Examples: `deltamask run --rounds 5 --set channel.codec=bfuse8 --out runs/filter`,
    `deltamask run --model facebook/dinov2-small --dataset cifar10 --set image_size=56 --set train.batch=64`
    """
    from deltamask import report, tables
    from deltamask.comparison import run_one
    from deltamask.config import load
    from deltamask.summary import Entry

    named = {"model": model, "dataset": dataset, "clients": clients, "rounds": rounds, "seed": seed}
    settings = load(config, _overrides(set_, **named))
    record = run_one(settings, out, resume, as_json, settings.method)
    report.write_report(out, {record["method"]: Entry({settings.seed: record})})
    if as_json:
        _print_json(record)
        return
    _show_table("Rounds", tables.ROUNDS, tables.round_rows(record))
    _show_table("Time", tables.STAGES, tables.stage_rows(record))
    _show_files(out)


@app.command()
def compare(
    config: ConfigFile = None,
    methods: Annotated[
        str, typer.Option(help="Names with commas; NAME:PRESET runs a method under a preset; all: every method.")
    ] = "deltamask,deltamask:paper,fedpm,finetune,linear-probe",
    model: Model = None,
    dataset: Dataset = None,
    clients: Clients = None,
    rounds: Rounds = None,
    seed: Seed = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method, with seeds from --seed on.")] = 1,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="[METHOD:]KEY=VALUE",
            help="Change a setting of all methods, or of one: finetune:train.lr=1e-4. May be repeated. "
            "In the file a table [methods.finetune] does the same.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder; each run gets one of its own in it, METHOD/seed-N.")] = Path(
        "runs/compare"
    ),
    jobs: Annotated[
        int, typer.Option(help="Runs at a time, each on its share of the cores; 0: one for each core.")
    ] = 0,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Keep what --out has: finished runs as they are, others from where they are."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run several methods on the same task and put them into one table.

    Same data, same order, same classifier, every byte of real frames counted. A method that fails is a row that says
    so, and the exit code is 1.

    Examples: `deltamask compare --methods deltamask,fedpm --rounds 5`,
    `deltamask compare --methods all --seeds 3 --resume --set finetune:train.lr=2e-3`
    """
    from deltamask import report, summary, tables
    from deltamask.comparison import plan, run_all
    from deltamask.provenance import cores

    named = {"model": model, "dataset": dataset, "clients": clients, "rounds": rounds, "seed": seed}
    runs = plan(config, methods, _overrides(set_, **named), seeds, out)
    entries = run_all(runs, resume, as_json, jobs or min(cores(), len(runs)))
    report.write_comparison(out, entries)
    rows = summary.rows(entries)
    failed = tables.failures(rows)
    if as_json:
        _print_json({row.label: tables.flat(row) | {"runs": list(row.entry.records.values())} for row in rows})
    else:
        first = report.first_of(entries)
        record = next(iter(entries[first].records.values()))
        _show_table(f"{first}, round by round", tables.ROUNDS, tables.round_rows(record))
        _show_table(f"{first}, time", tables.STAGES, tables.stage_rows(record))
        spread = f", mean ± standard deviation of {seeds} seeds" if seeds > 1 else ""
        _show_table(f"Methods{spread}", tables.COMPARISON, tables.comparison_rows(rows), report.LEGEND)
        if len(rows) > 1:
            _show_table(report.PRICE_TITLE, tables.PRICE, tables.price_rows(rows), report.price_note(entries))
        _show_files(out)
        of_each = "mask.dmask, result.json, rounds.jsonl and checkpoint.safetensors of each run"
        console.print(f"  {_escape(str(out))}/METHOD/seed-N/  [dim]{of_each}[/]", highlight=False, soft_wrap=True)
        for reason in failed:
            console.print(reason, highlight=False, markup=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)


@app.command(epilog=_epilog("partition", "clients", "min_images", "seed", "dataset"))
def partition(
    config: ConfigFile = None,
    set_: Set = None,
    out: Annotated[
        Path | None, typer.Option(help="The picture, .svg or .png; none: runs/partition.svg.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show who has what before anything is trained: each client's images and classes, as a table and a picture.

    Takes the settings of `run`, reads the data set's labels and loads no model. *Effective classes* is the inverse
    Simpson index of a client's labels over the number of classes: 1 where all classes are alike, 1/C where there is
    only one. In the picture a column is a client, a row a class, and a cell the darker the more images it stands for.

    Example: `deltamask partition --set partition=dirichlet:0.1 --set clients=30 --out who.png`

    `column:NAME` gives each distinct value of a column to a client: `--set partition=column:label`, one class each.
    """
    from deltamask import figures, tables
    from deltamask.config import load
    from deltamask.files import write_atomically
    from deltamask.task import holdings

    kind = out.suffix.removeprefix(".").lower() if out else "svg"
    if kind not in figures.FORMATS:
        raise ConfigError(f"--out is {str(out)!r}; expected a name that ends in .svg or .png")
    settings = load(config, set_ or ())
    held = holdings(settings)
    found = held.record()
    if as_json:
        _print_json({"partition": settings.partition, "clients": settings.clients, "seed": settings.seed} | found)
    else:
        title = (
            f"{settings.dataset}, {settings.partition}, seed {settings.seed}: {held.sizes.sum():,} images, "
            f"{held.effective_classes:.3f} effective classes on average"
        )
        _show_table(title, tables.CLIENTS, tables.client_rows(found))
    if out is None and not figures.available():
        console.print("no picture: it needs matplotlib, pip install 'deltamask[demo]'", highlight=False, markup=False)
        return
    picture = out or Path("runs/partition.svg")
    write_atomically(picture, figures.render(figures.who_has_what(held.counts, settings.partition), kind))
    _show_file(picture)


@app.command()
def encode(
    positions: Annotated[
        Path, typer.Argument(help="A .npy file of sorted integers, or text with one a line; - reads text.")
    ],
    size: Annotated[int, typer.Option(help="How many positions there are in all (d).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The payload to write.")],
    codec: Annotated[str, typer.Option(help="See `deltamask list codecs`.")] = "rans",
    png: Annotated[bool, typer.Option("--png", help="Wrap the payload in a grayscale PNG.")] = False,
    as_json: Json = False,
) -> None:
    """Turn a set of positions into a payload.

    Example: `seq 0 100 9999 | deltamask encode - --size 10000 --codec bfuse8 --png -o set.png`
    """
    from deltamask import codecs, images
    from deltamask.files import write_atomically

    chosen = codecs.get(codec)
    indices = _read_positions(positions)
    payload = chosen.encode(indices, size)
    data = images.wrap(payload, chosen) if png else payload
    write_atomically(out, data)
    facts = {"codec": codec, "entries": len(indices), "size": size, "bytes": len(data)}
    facts["bits_per_position"] = 8 * len(data) / size if size else None
    facts["bits_per_entry"] = 8 * len(data) / len(indices) if len(indices) else None
    _show_facts(facts, as_json)


@app.command()
def decode(
    payload: Annotated[Path, typer.Argument(help="A payload, a PNG of one or a frame around one.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A .npy or text file; none: standard output.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Refuse a payload that speaks of another number of positions.")
    ] = None,
) -> None:
    """Turn a payload back into positions, one a line.

    The code `context` needs what both sides knew of each position; its payloads decode inside a run only.
    """
    import io

    import numpy as np

    from deltamask import codecs
    from deltamask.files import write_atomically

    raw = _codec_payload(_read_bytes(payload))
    found = codecs.for_payload(raw).decode(raw, size)
    if out is None:
        np.savetxt(sys.stdout, found, fmt="%d")
        return
    if out.suffix == ".npy":
        binary = io.BytesIO()
        np.save(binary, found)
        write_atomically(out, binary.getvalue())
    else:
        write_atomically(out, "".join(f"{i}\n" for i in found.tolist()).encode())


@app.command()
def inspect(
    payload: Annotated[Path, typer.Argument(help="A frame, a codec payload, a PNG of one or a trained mask.")],
    picture: Annotated[Path | None, typer.Option(help="Also write the payload's bytes as a PNG here.")] = None,
    as_json: Json = False,
) -> None:
    """Show every field of a payload, its sizes and its picture."""
    from deltamask import inspection
    from deltamask.files import write_atomically

    seen = inspection.inspect(_read_bytes(payload))
    if picture is not None:
        write_atomically(picture, seen.png())
        seen.fields["picture"] = str(picture)
    _show_facts(seen.fields, as_json)
    if not as_json:
        screen.print(seen.thumbnail(), highlight=False, markup=False)


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="The output folder of a run.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The trained mask to write.")],
    as_json: Json = False,
) -> None:
    """Write the trained mask of a run as one file, from its last whole round."""
    from deltamask.simulate import load_run

    result = load_run(folder)
    adapter = result.adapter()
    size = adapter.save(out)
    facts = {"file": str(out), "bytes": size, "masked_weights": len(adapter.mask), "kept": int(adapter.mask.sum())}
    _show_facts(facts | {"bits_per_weight": 8 * size / len(adapter.mask), "round": adapter.round}, as_json)


@app.command()
def apply(
    mask: Annotated[Path, typer.Argument(help="A trained mask (*.dmask).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The .safetensors file to write.")],
    model: Annotated[
        str | None, typer.Option(help="The base model, if it is not where the run had it: a folder, a hub id, ...")
    ] = None,
    as_json: Json = False,
) -> None:
    """Apply a trained mask to its base model: the fine-tuned weights and the classifier as safetensors."""
    import torch
    from safetensors.torch import save

    from deltamask.adapter import Adapter
    from deltamask.backbones import base as backbones
    from deltamask.files import write_atomically

    adapter = Adapter.load(mask)
    module = backbones.load(model or str(adapter.about.get("model", "embedded")))
    state = adapter.apply(module)
    state["head.weight"] = torch.from_numpy(adapter.head.weight)
    state["head.bias"] = torch.from_numpy(adapter.head.bias)
    data = save(state, {"format": "pt", "deltamask_base_model": f"{adapter.model:016x}"})
    write_atomically(out, data)
    _show_facts({"file": str(out), "bytes": len(data), "tensors": len(state), **adapter.about}, as_json)


_KINDS = ("codecs", "methods", "models", "datasets", "downlinks", "heads", "presets", "settings")


@app.command(name="list")
def list_(
    kind: Annotated[str, typer.Argument(help="One of: " + ", ".join(_KINDS))],
    as_json: Json = False,
) -> None:
    """List what can be chosen: codecs, methods, models, datasets, downlinks, heads, presets or settings."""
    from deltamask import codecs
    from deltamask.config import PRESETS, settings
    from deltamask.registry import members

    if kind == "codecs":
        rows = {
            n: f"id {codecs.get(n).format_id}, {'exact' if codecs.get(n).exact else 'filter'}" for n in codecs.names()
        }
    elif kind == "methods":
        rows = {name: method.summary for name, method in members("deltamask.methods", "METHOD").items()}
    elif kind == "models":
        rows = {name: _first_line(build) for name, build in members("deltamask.backbones", "build").items()}
        rows["MODULE:FUNCTION"] = "a function of yours that returns a torch module: images in, features out"
    elif kind == "datasets":
        rows = {
            name: f"{_where(found.available())}{found.about}"
            for name, found in members("deltamask.datasets", "DATASET").items()
        }
        rows["a folder or hub id"] = "images with classes: parquet, a folder of images for each class, IDX"
    elif kind == "downlinks":
        rows = {name: _first_line(type(d)) for name, d in members("deltamask.downlink", "DOWNLINK").items()}
    elif kind == "heads":
        rows = {name: _first_line(type(h)) for name, h in members("deltamask.heads", "HEAD").items()}
    elif kind == "presets":
        rows = {name: ", ".join(f"{k}={v}" for k, v in preset.items()) for name, preset in PRESETS.items()}
    elif kind == "settings":
        rows = {key: f"{default}: {text}" for key, default, text in settings()}
    else:
        raise unknown_name("list", kind, _KINDS)
    if as_json:
        _print_json(rows)
    else:
        _show_table(kind, ("name", "what"), list(rows.items()))


@app.command()
def bench(
    size: Annotated[int, typer.Option(help="Number of positions d.")] = 4_000_000,
    rate: Annotated[float, typer.Option(help="Share of changed positions.")] = 0.01,
    as_json: Json = False,
) -> None:
    """Time every codec on this machine: a quick look; `make bench` compares with public peers."""
    from deltamask.quickbench import COLUMNS, measure

    rows = measure(size, rate)
    if as_json:
        _print_json(rows)
    else:
        shown = [tuple(f"{v:,.4g}" if isinstance(v, float) else str(v) for v in row.values()) for row in rows]
        _show_table(f"{size:,} positions, {rate:.2%} changed, one thread", COLUMNS, shown)


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """The entry point: exit code 0, 2 for what the user can mend, 130 when interrupted."""
    try:
        app()
    except DeltaMaskError as error:
        console.print(f"[bold red]deltamask:[/] {_escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        console.print("interrupted; --resume continues a run from its last whole round")
        sys.exit(130)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _where(place: str | None) -> str:
    return f"[here: {place}] " if place else "[on the hub] "


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().split("\n")[0]


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def _read_positions(path: Path) -> Any:
    import numpy as np

    try:
        if str(path) == "-":
            return np.array([int(word) for word in sys.stdin.read().split()], dtype=np.int64)
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        return np.array([int(word) for word in path.read_text(encoding="utf-8").split()], dtype=np.int64)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path}: {error}; expected integers") from None


def _codec_payload(data: bytes) -> bytes:
    """The codec payload in a raw payload, a PNG or a frame."""
    from deltamask import images, inspection

    inner = inspection.frame_of(data)
    return images.unwrap(inner.payload if inner else data, limit=2**30)


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def _show_table(title: str, head: tuple[str, ...], rows: Any, note: str = "") -> None:
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)] if rows else []
    if sum(3 + max(width, len(name)) for width, name in zip(widths, head, strict=False)) >= screen.width:
        # Names fold above their numbers: rich would rather cut the numbers.
        words = [max(width, 5, *map(len, name.split())) for width, name in zip(widths, head, strict=True)]
        head = tuple(fill(name, width) for name, width in zip(head, words, strict=True))
    table = Table(
        *head, title=title, title_justify="left", header_style="bold", caption=note or None, caption_justify="left"
    )
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "left" if len(head) == 2 else "right"
    for row in rows:
        table.add_row(*(_escape(str(cell)) for cell in row))
    screen.print(table)


def _show_facts(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        _print_json(facts)
    else:
        for key, value in facts.items():
            shown = (
                f"{value:.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
            )
            screen.print(f"{key:>18}  {_escape(shown)}", highlight=False, soft_wrap=True)


def _show_files(out: Path) -> None:
    names = ("report.html", "report.md", "comparison.svg", "comparison.csv", "runs.csv")
    for name in (*names, "mask.dmask", "result.json", "rounds.jsonl"):
        if (out / name).exists():
            _show_file(out / name)


def _show_file(path: Path) -> None:
    console.print(f"  {_escape(str(path))}  [dim]{path.stat().st_size:,} bytes[/]", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
