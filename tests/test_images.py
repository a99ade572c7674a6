"""PNG images: any viewer opens them, and nothing but what `to_png` writes comes back."""

import io
import os
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from deltamask import codecs, images
from deltamask.errors import ChecksumError, ConfigError, LimitError, MalformedError, TruncatedError, WireError
from deltamask.images import from_png, to_png

SIGNATURE = b"\x89PNG\r\n\x1a\n"
FUZZ = settings(deadline=None, max_examples=200, derandomize=True)
PIXELS = bytes(i * i % 251 for i in range(1000)) + bytes(500)


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(*, pixels=PIXELS, head=b"head", count=None, width=None, height=None, mode=None, raw=None, image=None):
    """What `to_png` writes, with single parts of it replaced and every checksum right."""
    height = height or max(1, int(len(pixels) ** 0.5) // 4)
    width = width or max(1, -(-len(pixels) // height))
    if raw is None:
        rows = pixels.ljust(width * height, b"\0")
        raw = b"".join(b"\0" + rows[at : at + width] for at in range(0, len(rows), width))
    count = len(pixels) if count is None else count
    size = b""
    while count > 127:
        size += bytes([count & 127 | 128])
        count >>= 7
    ihdr = struct.pack(">II", width, height) + (mode or bytes((8, 0, 0, 0, 0)))
    parts = [(b"IHDR", ihdr), (b"dmSK", size + bytes([count]) + head)]
    parts += [(b"IDAT", zlib.compress(raw) if image is None else image), (b"IEND", b"")]
    return SIGNATURE + b"".join(chunk(*part) for part in parts)


@pytest.mark.parametrize("options", [{}, {"level": 0}, {"level": 1}, {"level": -1}, {"huffman_only": True}])
@pytest.mark.parametrize("length", [0, 1, 2, 15, 16, 255, 256, 1000, 70_000])
def test_pillow_sees_the_pixels(length, options):
    pixels = (PIXELS * 50)[:length]
    data = to_png(b"head", pixels, **options)
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        assert image.mode == "L"
        assert image.width >= image.height
        seen = np.asarray(image).tobytes()
    assert seen[:length] == pixels
    assert not any(seen[length:])
    assert len(seen) - length < max(2, length**0.5)
    assert from_png(data, limit=length + 4) == (b"head", pixels)


def test_options_do_what_they_say():
    sparse = np.zeros(50_000, np.uint8)
    sparse[::7] = np.arange(len(sparse[::7])) % 256
    pixels = sparse.tobytes()
    stored, deflated, huffman = (
        len(to_png(b"", pixels, level=0)),
        len(to_png(b"", pixels)),
        len(to_png(b"", pixels, huffman_only=True)),
    )
    assert deflated < huffman < stored
    assert 0 < stored - len(pixels) < 300
    for level in (-2, 10):
        with pytest.raises(ConfigError, match=f"level is {level}"):
            to_png(b"", pixels, level=level)


def test_incompressible_pixels_cost_little():
    for length in (1000, 100_000):
        pixels = os.urandom(length)
        assert len(to_png(bytes(8), pixels)) - length < 100 + length**0.5 / 2


def test_the_chunk_is_private_and_unsafe_to_copy():
    data = to_png(b"head", PIXELS)
    name = data[len(SIGNATURE) + 25 + 4 :][:4]
    assert name == b"dmSK"
    assert [bool(letter & 0x20) for letter in name] == [True, True, False, False]


@given(head=st.binary(max_size=40), pixels=st.binary(max_size=2000), huffman_only=st.booleans())
@FUZZ
def test_round_trips(head, pixels, huffman_only):
    data = to_png(head, pixels, huffman_only=huffman_only)
    assert from_png(data, limit=len(head) + len(pixels)) == (head, pixels)


def test_the_helper_writes_the_same_layout():
    assert from_png(png(), limit=2000) == (b"head", PIXELS)


def test_limit():
    data = to_png(b"head", PIXELS)
    with pytest.raises(LimitError, match="4 bytes of head and 1500 pixels, at most 1503 accepted"):
        from_png(data, limit=1503)


def test_every_truncation_is_refused():
    data = to_png(b"head", PIXELS[:300])
    for length in range(len(data)):
        with pytest.raises(TruncatedError):
            from_png(data[:length], limit=2000)


def test_every_flipped_bit_is_noticed():
    data = to_png(b"head", PIXELS[:100])
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            from_png(bytes(damaged), limit=2000)


@pytest.mark.parametrize("name", [b"IHDR", b"dmSK", b"IDAT", b"IEND"])
def test_every_chunk_is_checked(name):
    data = bytearray(to_png(b"head", PIXELS))
    at = data.index(name)
    length = int.from_bytes(data[at - 4 : at], "big")
    for offset in (4 + length // 2 if length else 4, 4 + length):
        damaged = bytearray(data)
        damaged[at + offset] ^= 0x40
        with pytest.raises(ChecksumError, match=name.decode()):
            from_png(bytes(damaged), limit=2000)


def bomb(length):
    deflate = zlib.compressobj(9)
    piece = bytes(1 << 16)
    return b"".join(deflate.compress(piece) for _ in range(length >> 16)) + deflate.flush()


@pytest.mark.parametrize("count", [0, 1500, 2000])
def test_bombs_are_not_inflated(count):
    image = bomb(1 << 26)
    data = png(pixels=bytes(count), image=image)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedError, match="inflate to more"):
            from_png(data, limit=5000)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(data) + 50_000
    finally:
        tracemalloc.stop()


def test_huge_sizes_are_refused_before_anything_is_inflated():
    for side in (2**31 - 1, 2**32 - 1):
        with pytest.raises(WireError):
            from_png(png(width=side, height=side, raw=b"", count=1), limit=10_000)
    with pytest.raises(LimitError):
        from_png(png(count=2**40), limit=10_000)
    with pytest.raises(LimitError):
        from_png(png(count=2**60), limit=10_000)


WIDTH = 167
ROWS = b"".join(b"\0" + PIXELS[at : at + WIDTH].ljust(WIDTH, b"\0") for at in range(0, 1500, WIDTH))


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"mode": bytes((16, 0, 0, 0, 0))}, MalformedError, "8-bit grayscale"),
        ({"mode": bytes((8, 2, 0, 0, 0))}, MalformedError, "8-bit grayscale"),
        ({"mode": bytes((8, 0, 0, 0, 1))}, MalformedError, "8-bit grayscale"),
        ({"mode": bytes((8, 0, 0, 0))}, MalformedError, "IHDR"),
        ({"width": 1500, "height": 1}, MalformedError, "1500x1 for 1500 pixels, expected 167x9"),
        ({"count": 1499, "pixels": PIXELS[:1400] + b"\1" * 100}, MalformedError, "behind the last of 1499"),
        ({"raw": ROWS[:-1]}, MalformedError, "inflate to 1511 bytes"),
        ({"raw": ROWS + b"\0"}, MalformedError, "inflate to more than the 1512 bytes"),
        ({"raw": b""}, MalformedError, "inflate to 0 bytes"),
        ({"raw": b"\1" + ROWS[1:]}, MalformedError, "filter other than 0"),
        ({"raw": ROWS[:-168] + b"\4" + ROWS[-167:]}, MalformedError, "filter other than 0"),
        ({"image": b""}, TruncatedError, "without an end"),
        ({"image": b"not zlib"}, MalformedError, "do not inflate"),
        ({"image": zlib.compress(ROWS)[:-2]}, TruncatedError, "without an end"),
        ({"image": zlib.compress(ROWS)[:-1] + b"\0"}, MalformedError, "do not inflate"),
        ({"image": zlib.compress(ROWS) + b"\0"}, MalformedError, "1 follow"),
        ({"image": zlib.compress(ROWS) * 2}, MalformedError, "follow"),
    ],
)
def test_images_of_others(changes, error, said):
    assert len(ROWS) == 1512
    with pytest.raises(error, match=said):
        from_png(png(**changes), limit=5000)


def test_other_chunks_and_tails_are_refused():
    data = png()
    end = chunk(b"IEND", b"")
    body = data[: -len(end)]
    for other in (
        data + b"\0",
        data + data,
        body + chunk(b"tEXt", b"a\0b") + end,
        body + chunk(b"IDAT", b"") + end,
        body + chunk(b"IEND", b"x"),
        data[:33] + data[data.index(b"IDAT") - 4 :],
    ):
        with pytest.raises(MalformedError):
            from_png(other, limit=5000)
    with Image.open(io.BytesIO(data)) as image:
        saved = io.BytesIO()
        image.save(saved, "PNG")
    with pytest.raises(MalformedError, match="only the layout"):
        from_png(saved.getvalue(), limit=5000)
    with pytest.raises(MalformedError, match="starts with"):
        from_png(b"GIF89a..........", limit=5000)


@given(data=st.binary(max_size=300))
@FUZZ
def test_random_bytes(data):
    for prefix in (b"", SIGNATURE, png()[:33]):
        with pytest.raises(WireError):
            from_png(prefix + data, limit=1000)


def test_unwrap_takes_both():
    rans = codecs.get("rans")
    payload = rans.encode(np.arange(0, 9000, 11), 9000)
    image = images.wrap(payload, rans)
    assert image[0] == 0x89
    assert payload[0] < 0x80
    assert images.unwrap(image, limit=len(payload)) == images.unwrap(payload, limit=len(payload)) == payload
    head, pixels = from_png(image, limit=len(payload))
    assert head == payload[: rans.head_length(payload)]
    assert head + pixels == payload
    for data in (image, payload):
        with pytest.raises(LimitError):
            images.unwrap(data, limit=len(payload) - 1)
