"""Drives an agent at localhost:49983 with E2B's client. Exits with 1 if something is wrong.

Usage: check.py [TEST]...
"""

import sys
import time
import traceback

from e2b import Sandbox

import both
import commands
import files


def main(chosen):
    sandbox = Sandbox.create(debug=True)
    failed = []
    for test in commands.ALL + files.ALL + both.ALL:
        if chosen and test.__name__ not in chosen:
            continue
        begun = time.monotonic()
        try:
            test(sandbox)
            print(f"ok {test.__name__} ({time.monotonic() - begun:.1f} s)", flush=True)
        except Exception:
            traceback.print_exc(file=sys.stdout)
            print(f"FAILED {test.__name__}", flush=True)
            failed.append(test.__name__)
    print(f"failed: {' '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
