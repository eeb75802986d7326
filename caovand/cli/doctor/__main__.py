"""`caovan-sm75-doctor` from a bare checkout: python3 -m caovand.cli.doctor."""

from __future__ import annotations

import sys

from caovand.cli.doctor import main

if __name__ == "__main__":
    sys.exit(main())
