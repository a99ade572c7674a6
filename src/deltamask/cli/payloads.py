"""Commands on single payloads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from deltamask.cli.shared import Json, app, read_bytes, screen, show_facts
from deltamask.errors import DataError

__all__ = ["decode", "encode", "inspect"]


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
    show_facts(facts, as_json)


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

    raw = _codec_payload(read_bytes(payload))
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

    seen = inspection.inspect(read_bytes(payload))
    if picture is not None:
        write_atomically(picture, seen.png())
        seen.fields["picture"] = str(picture)
    show_facts(seen.fields, as_json)
    if not as_json:
        screen.print(seen.thumbnail(), highlight=False, markup=False)


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
