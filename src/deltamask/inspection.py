"""What is inside a payload: every field, the sizes, and a picture of its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from deltamask import codecs, images
from deltamask.adapter import Adapter
from deltamask.wire import SERVER, Frame, open_frame

__all__ = ["Inspection", "frame_of", "inspect"]

_MAGIC = b"DM"


@dataclass
class Inspection:
    """Fields by name, and the bytes that make the picture."""

    fields: dict[str, Any]
    pixels: bytes

    def png(self) -> bytes:
        """The pixels as a grayscale PNG."""
        return images.to_png(b"", self.pixels)

    def thumbnail(self, width: int = 72, height: int = 12) -> str:
        """A sample of the pixels in five shades of characters, as dark as the bytes are large."""
        if not self.pixels:
            return "(no bytes to show)"
        flat = np.frombuffer(self.pixels, np.uint8)
        at = np.linspace(0, flat.size - 1, min(flat.size, width * height)).astype(np.int64)
        shades = "".join(" ░▒▓█"[value * 5 // 256] for value in flat[at].tolist())
        return "\n".join(shades[i : i + width] for i in range(0, len(shades), width))


def frame_of(data: bytes) -> Frame | None:
    """The frame in ``data``, or none where it is something else; a damaged frame raises `WireError`."""
    return open_frame(data) if data[:2] == _MAGIC else None


def inspect(data: bytes) -> Inspection:
    """Every field of a frame, a trained mask, a codec payload or its PNG; other bytes raise `WireError`."""
    fields: dict[str, Any] = {"bytes": len(data)}
    frame = frame_of(data)
    inner = data
    if frame is not None:
        inner = frame.payload
        fields |= {
            "frame": frame.kind,
            "masked_weights": frame.size,
            "base_model": f"{frame.model:016x}",
            "client": "server" if frame.client == SERVER else frame.client,
            "round": frame.round,
            "seed_commitment": f"{frame.seed:016x}",
            "payload_bytes": len(inner),
            "frame_bytes": len(data) - len(inner),
        }
        if frame.size:
            fields["bits_per_parameter"] = 8 * len(data) / frame.size
        if frame.kind == "adapter":
            adapter = Adapter.from_bytes(data)
            fields |= {"kept_weights": int(adapter.mask.sum()), "layers": len(adapter.layers), **adapter.about}
        if frame.kind == "mask":
            fields["coded_bit"] = inner[0] if inner else None
            inner = inner[1:]
    if frame is None or frame.kind in ("delta", "mask"):
        fields |= _codec_fields(inner)
        inner = images.unwrap(inner, limit=2**30)
        inner = inner[codecs.for_payload(inner).head_length(inner) :]
    return Inspection(fields, inner)


def _codec_fields(data: bytes) -> dict[str, Any]:
    payload = images.unwrap(data, limit=2**30)
    codec = codecs.for_payload(payload)
    head = codec.head_length(payload)
    entries, size = codec.announced(payload)
    fields: dict[str, Any] = {
        "image": "png" if payload is not data and data[:1] == b"\x89" else "none",
        "codec": codec.name,
        "format_id": codec.format_id,
        "positions": size,
        "entries": entries,
        "head_bytes": head,
        "body_bytes": len(payload) - head,
    }
    if entries:
        fields["bits_per_entry"] = 8 * len(data) / entries
    if codec.uses_context:
        return fields
    found = codec.decode(payload)
    return fields | {"wrong_positions": int(found.size) - entries}
