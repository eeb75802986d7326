"""Count the cycles of a kernel, or show what is predicted.

python -m card_model                     the table of predictions
python -m card_model steps               STEPS.md: a decode step, what it reads and takes
python -m card_model gdn_chunk_scan FILE the cycles of a kernel of kernels.py; FILE is what
                                         `nvdisasm -hex -c` prints of its cubin (nvdisasm is
                                         PyPI's nvidia-cuda-nvdisasm)

A new kernel gets a row in kernels.py, with the branches that the defaults of `sm.Path` get wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path

from card_model import card
from card_model.kernels import KERNELS
from card_model.sass import parse
from card_model.sm import Result, simulate
from card_model.steps import page
from card_model.times import table


def count(name: str, listing: str) -> Result:
    kernel = KERNELS[name]
    cta = [kernel.path(warp) for warp in range(kernel.threads // 32)]
    return simulate(
        parse(listing, kernel.symbol),
        [cta] * kernel.resident,
        active_sms=1 if kernel.alone else card.SMS,
    )


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(table())
    elif sys.argv[1:] == ["steps"]:
        print(page(), end="")
    else:
        result = count(sys.argv[1], Path(sys.argv[2]).read_text())
        print(f"{result.cycles:.0f} cycles; recorded {KERNELS[sys.argv[1]].cycles}")
        print({pipe: f"{share:.0%}" for pipe, share in sorted(result.busy.items())})
        print(dict(result.issued.most_common()))
