"""csrc/README's text matches its tables."""

from __future__ import annotations

from tests.daemon_process import ROOT

HEAD = "| sequences x tokens | ours | Triton recurrence | ratio |"


def test_the_sizes_that_are_slower_than_tritons_recurrence_are_named() -> None:
    text = (ROOT / "csrc/README.md").read_text(encoding="utf-8").partition(HEAD)[2]
    table, _, words = text.partition("\n\n")
    rows = [[cell.strip() for cell in row.split("|")[1:5]] for row in table.split("\n")[2:]]
    assert "64 x 1" in {size for size, *_ in rows}
    for size, ours, triton, ratio in rows:
        assert abs(float(triton) / float(ours) - float(ratio)) < 0.01, size
    said = words.partition(". ")[0]
    slower = [size for size, _, _, ratio in rows if float(ratio) < 1]
    assert all(size in said for size in slower)
    assert said.startswith("No size is slower") == (not slower)
