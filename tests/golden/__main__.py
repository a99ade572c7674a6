"""``python -m tests.golden NAME...`` writes the goldens of these names; run it on purpose only."""

import json
import sys

from deltamask.errors import DeltaMaskError, unknown_name
from tests.golden import MANIFEST, entry, goldens, manifest, path_of


def main(names):
    known = goldens()
    if not names:
        sys.exit(f"usage: python -m tests.golden NAME...\nhave: {', '.join(known)}")
    entries = manifest()
    for name in names:
        if name not in known:
            raise unknown_name("golden", name, known)
        data = known[name].encode()
        known[name].check(data)
        before = path_of(name).read_bytes() if path_of(name).exists() else None
        path_of(name).write_bytes(data)
        entries[name] = entry(known[name], data)
        state = "new" if before is None else "unchanged" if before == data else "CHANGED: is there a new format id?"
        print(f"{name}: {len(data)} bytes, {state}")
    MANIFEST.write_text(json.dumps(dict(sorted(entries.items())), indent=2) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except DeltaMaskError as error:
        sys.exit(str(error))
