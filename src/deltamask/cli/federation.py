"""Commands that run a federation, show what it would run on, or use what it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltamask.cli.shared import (
    Clients,
    ConfigFile,
    Dataset,
    Json,
    Model,
    Resume,
    Rounds,
    Seed,
    Set,
    app,
    console,
    epilog,
    escape,
    overrides,
    print_json,
    show_facts,
    show_file,
    show_files,
    show_table,
)
from deltamask.errors import ConfigError

__all__ = ["apply", "compare", "export", "partition", "run"]


@app.command(epilog=epilog())
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
    settings = load(config, overrides(set_, **named))
    record = run_one(settings, out, resume, as_json, settings.method)
    report.write_report(out, {record["method"]: Entry({settings.seed: record})})
    if as_json:
        print_json(record)
        return
    show_table("Rounds", tables.ROUNDS, tables.round_rows(record))
    show_table("Time", tables.STAGES, tables.stage_rows(record))
    show_files(out)


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
    runs = plan(config, methods, overrides(set_, **named), seeds, out)
    entries = run_all(runs, resume, as_json, jobs or min(cores(), len(runs)))
    report.write_comparison(out, entries)
    rows = summary.rows(entries)
    failed = tables.failures(rows)
    if as_json:
        print_json({row.label: tables.flat(row) | {"runs": list(row.entry.records.values())} for row in rows})
    else:
        first = report.first_of(entries)
        record = next(iter(entries[first].records.values()))
        show_table(f"{first}, round by round", tables.ROUNDS, tables.round_rows(record))
        show_table(f"{first}, time", tables.STAGES, tables.stage_rows(record))
        spread = f", mean ± standard deviation of {seeds} seeds" if seeds > 1 else ""
        show_table(f"Methods{spread}", tables.COMPARISON, tables.comparison_rows(rows), report.LEGEND)
        if len(rows) > 1:
            show_table(report.PRICE_TITLE, tables.PRICE, tables.price_rows(rows), report.price_note(entries))
        show_files(out)
        of_each = "mask.dmask, result.json, rounds.jsonl and checkpoint.safetensors of each run"
        console.print(f"  {escape(str(out))}/METHOD/seed-N/  [dim]{of_each}[/]", highlight=False, soft_wrap=True)
        for reason in failed:
            console.print(reason, highlight=False, markup=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)


@app.command(epilog=epilog("partition", "clients", "min_images", "seed", "dataset"))
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
        print_json({"partition": settings.partition, "clients": settings.clients, "seed": settings.seed} | found)
    else:
        title = (
            f"{settings.dataset}, {settings.partition}, seed {settings.seed}: {held.sizes.sum():,} images, "
            f"{held.effective_classes:.3f} effective classes on average"
        )
        show_table(title, tables.CLIENTS, tables.client_rows(found))
    if out is None and not figures.available():
        console.print("no picture: it needs matplotlib, pip install 'deltamask[demo]'", highlight=False, markup=False)
        return
    picture = out or Path("runs/partition.svg")
    write_atomically(picture, figures.render(figures.who_has_what(held.counts, settings.partition), kind))
    show_file(picture)


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
    show_facts(facts | {"bits_per_weight": 8 * size / len(adapter.mask), "round": adapter.round}, as_json)


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
    show_facts({"file": str(out), "bytes": len(data), "tensors": len(state), **adapter.about}, as_json)
