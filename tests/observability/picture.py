"""Draws the data of the shipped dashboard: `python -m tests.observability.picture FILE` (`make dashboard-picture`).

Grafana does not run here. This draws the panels' own queries, at the panels' own places, from a real Prometheus after a
load on real servers; so it shows what there is to see, not how Grafana paints it.
"""

import argparse
import math
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.ticker import EngFormatter, PercentFormatter
from PIL import Image

from tests.observability.panels import Query, queries
from tests.observability.scraped import Scraped, scraped_servers

# The window of the rates.
WINDOW = "5s"
ROWS = ("At a glance", "Tokens", "Latency", "Errors and refusals", "Saturation", "Streams", "Engines")
# Quiet, busy, quiet: seconds, and the pause between two steps of a thread.
LOAD = ((20, 0.2), (30, 0.02), (20, 0.2))
_WIDTH_IN, _ROW_IN, _DPI = 13.0, 0.19, 75
_MOST_LINES = 8
_FORMATS: dict[str, Callable[[], Any]] = {
    "s": lambda: EngFormatter(unit="s"),
    "bytes": lambda: EngFormatter(unit="B"),
    "Bps": lambda: EngFormatter(unit="B/s"),
    "reqps": lambda: EngFormatter(unit="/s"),
    "percentunit": lambda: PercentFormatter(xmax=1, decimals=1),
}


def draw(scraped: Scraped, target: Path, rows: tuple[str, ...] = ROWS) -> None:
    """Draw the panels of some rows into a PNG.

    Args:
        scraped: A Prometheus, and the time that is to be shown.
        target: The file.
        rows: Of the dashboard, by their titles.
    """
    by_panel: dict[int, list[Query]] = {}
    for query in queries(WINDOW):
        if query.row in rows:
            by_panel.setdefault(query.panel["id"], []).append(query)
    places = [found[0].panel["gridPos"] for found in by_panel.values()]
    top = min(place["y"] for place in places)
    height = max(place["y"] + place["h"] for place in places) - top
    figure = plt.figure(figsize=(_WIDTH_IN, height * _ROW_IN), dpi=_DPI)
    for found in by_panel.values():
        panel, place = found[0].panel, found[0].panel["gridPos"]
        # Some room for the title above and the time below.
        left, width = place["x"] / 24 + 0.035, place["w"] / 24 - 0.045
        bottom = 1 - (place["y"] - top + place["h"] - 1.4) / height
        axes = figure.add_axes((left, bottom, width, (place["h"] - 2.9) / height))
        axes.set_title(panel["title"], fontsize=8, loc="left")
        axes.tick_params(labelsize=6)
        _PAINTERS[panel["type"]](axes, found, scraped)
    figure.savefig(target)
    plt.close(figure)
    with Image.open(target) as painted:
        small = painted.convert("P", palette=Image.Palette.ADAPTIVE, colors=96)
    small.save(target, optimize=True)


def _series(query: Query, scraped: Scraped) -> list[tuple[str, list[float], list[float]]]:
    """Legend, times since the start and values of each line of a query."""
    found = []
    for each in scraped.prometheus.range(query.expression, scraped.start, scraped.end):
        legend = _legend(query.legend, each["metric"])
        times = [time - scraped.start for time, _ in each["values"]]
        found.append((legend, times, [float(value) for _, value in each["values"]]))
    return found


def _legend(template: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda name: labels.get(name[1], ""), template)


def _paint_lines(axes: Axes, found: list[Query], scraped: Scraped) -> None:
    lines = [line for query in found for line in _series(query, scraped)]
    # What does not happen at all takes no room, unless nothing does.
    lines = [line for line in lines if any(value > 0 for value in line[2])] or lines
    # The servers of this run have accidental ports.
    names = {server.ops: f"server {n}" for n, server in enumerate(scraped.servers, 1)}
    for legend, times, values in lines[:_MOST_LINES]:
        known = re.sub(r"[\d.]+:\d+", lambda address: names[address[0]], legend)
        axes.plot(times, values, linewidth=1, label=known)
    panel = found[0].panel
    axes.yaxis.set_major_formatter(_format(panel))
    # A third above the lines is the legend's.
    highest = max((value for *_, values in lines for value in values if math.isfinite(value)), default=0)
    axes.set_ylim(0, highest * 1.5 or 1)
    axes.set_xlim(0, scraped.end - scraped.start)
    if lines:
        axes.legend(fontsize=5, loc="upper left", ncols=2, frameon=False)


def _paint_heat(axes: Axes, found: list[Query], scraped: Scraped) -> None:
    buckets = sorted((float(legend), times, values) for legend, times, values in _series(found[0], scraped))
    below = [0.0] * len(buckets[0][2])
    cells, shown = [], []
    for bound, _, values in buckets:
        cells.append([now - before for now, before in zip(values, below, strict=True)])
        shown.append(bound)
        below = values
    moved = [n for n, row in enumerate(cells) if any(row)]
    first, last = moved[0], moved[-1]
    times = [*buckets[0][1], buckets[0][1][-1] + 1]
    grid = cells[first : last + 1]
    axes.set_xlim(0, scraped.end - scraped.start)
    axes.pcolormesh(times, range(len(grid) + 1), grid, cmap="Oranges", norm=PowerNorm(0.4))
    labels = [
        "inf" if math.isinf(bound) else _text(found[0].panel, bound) for bound in shown[first : last + 1]
    ]
    every = 1 + len(labels) // 8
    axes.set_yticks([n + 1 for n in range(0, len(labels), every)], labels[::every])


def _paint_number(axes: Axes, found: list[Query], scraped: Scraped) -> None:
    axes.set_axis_off()
    [(_, _, values), *_] = _series(found[0], scraped)
    # Of the busy middle: at the end nothing is going on.
    said = _text(found[0].panel, values[len(values) // 2])
    axes.text(0.5, 0.3, said, fontsize=13, ha="center", va="center")


def _format(panel: dict[str, Any]) -> Any:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    return _FORMATS.get(unit, lambda: EngFormatter(sep=""))()


def _text(panel: dict[str, Any], value: float) -> str:
    written = _format(panel)
    # An axis' range decides on the digits of a percentage otherwise.
    if isinstance(written, PercentFormatter):
        return written.format_pct(value, 1)
    return written(float(f"{value:.3g}"), None)


_PAINTERS: dict[str, Callable[[Axes, list[Query], Scraped], None]] = {
    "timeseries": _paint_lines,
    "heatmap": _paint_heat,
    "stat": _paint_number,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.observability.picture", description=__doc__)
    parser.add_argument("file", type=Path, help="the PNG to write")
    target = parser.parse_args().file
    with (
        tempfile.TemporaryDirectory() as folder,
        scraped_servers(Path(folder), LOAD, "--engine", "auto") as scraped,
    ):
        draw(scraped, target)
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
