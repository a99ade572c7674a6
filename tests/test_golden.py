"""The bytes of every codec, of the frame and of the images are those of the release that introduced them."""

import pytest

from tests.golden import HERE, entry, goldens, manifest, path_of

GOLDENS = goldens()


@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_golden(name):
    golden = GOLDENS[name]
    if not path_of(name).exists() or name not in manifest():
        pytest.fail(f"there is no golden for {name}; `python -m tests.golden {name}` writes it, then commit it")
    data = path_of(name).read_bytes()
    assert manifest()[name] == entry(golden, data)
    golden.check(data)
    if golden.reproducible:
        assert golden.encode() == data, f"{name} writes other bytes than before: they need a new format id"
    else:
        golden.check(golden.encode())


def test_nothing_else_is_there():
    assert sorted(manifest()) == sorted(GOLDENS)
    assert sorted(path.stem for path in HERE.glob("*.bin")) == sorted(GOLDENS)
