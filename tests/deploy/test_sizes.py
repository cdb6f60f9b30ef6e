"""The sizes in docs/deploying.md follow from the figures in docs/benchmarks.md."""

from benchmarks.pages import ROOT, standing
from benchmarks.sizing import sizing_table

ROWS = """
| 1 | bulk over the wire, llama3, against x | 1 | | | | 8.0 M tokens/s (28 MB/s) against 0.75 M |
| 5 | AsyncClient.encode at 256 callers against x | 1 | | | | 40,000 calls a second against 2 |
| 2 | Encode of 200 characters against an echo, grpcio front | 1 | | | | 4,000 calls a server-CPU second (299 us each) |
| 2 | Encode of 200 characters against an echo, native front | 1 | | | | 10,000 calls a server-CPU second (73 us each) |
| 6 | StreamDecode, 256 sequences a message: tokens | 250,000 | | | | DecodeStream |
| 9 | resident memory of each further worker | 1 | | | | one worker 1000 MB, 4 with: 100 MB for each more |
"""


def test_the_sizes_are_those_of_the_figures():
    figures = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert standing(ROOT / "docs" / "deploying.md", "sizes") == sizing_table(figures)


def test_cores_follow_from_the_load_and_what_a_core_does():
    lines = sizing_table(ROWS).splitlines()[2:7]
    cells = [[cell.strip() for cell in line.split("|")[3:7]] for line in lines]
    assert cells == [
        ["1", "4,000,000 tokens", "0.5", "1 + 1"],
        ["5", "20,000 texts", "1.7", "1 + 1"],
        ["2", "10,000 calls", "3.4", "2 + 1"],
        ["2", "4,000 calls", "8.4", "5 + 1"],
        ["6", "250,000 tokens", "3.4", "2 + 1"],
    ]
