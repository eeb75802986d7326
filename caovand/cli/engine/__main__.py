"""`caovanctl engine` from a bare checkout: python3 -m caovand.cli.engine."""

from __future__ import annotations

import sys

from caovand.cli.engine import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
