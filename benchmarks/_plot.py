"""Draws requests per second against connections, from the figures on its input; runs where matplotlib is."""

import json
import sys
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks._gru import WORKLOADS

COLOURS = {"Tesseract": "C7", "ours": "C0"}
STYLES = {"safetensors": "--"}


def draw(axes: Axes, figures: Mapping[str, Any]) -> None:
    """Draw one workload: a line for each server with its name at the end, and what is possible in process."""
    for results in zip(*figures["served"].values(), strict=True):
        name, _, codec = results[0]["name"].partition(", ")
        counts, rates = [int(c) for c in figures["served"]], [result["rate"] for result in results]
        medians = [rate["median"] for rate in rates]
        spread = [[rate["median"] - rate["low"] for rate in rates], [rate["high"] - rate["median"] for rate in rates]]
        style = {"color": COLOURS[name], "linestyle": STYLES.get(codec, "-"), "marker": "o", "markersize": 4}
        axes.errorbar(counts, medians, spread, capsize=2, label=results[0]["name"], **style)
    for how, rates in figures["in process"].items():
        for name, rate in rates.items():
            axes.axhline(rate["median"], color=COLOURS[name], linestyle=":", linewidth=1)
            place = {"xy": (1, rate["median"]), "xycoords": ("axes fraction", "data"), "va": "center"}
            offset = {"xytext": (4, 0), "textcoords": "offset points", "fontsize": 8, "color": COLOURS[name]}
            axes.annotate(f"{name} in process,\n{how}", **place, **offset)
    axes.set(xscale="log", yscale="log", xlabel="connections", ylabel="requests per second")
    axes.set_xticks(counts, [str(c) for c in counts])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Write the plot to the file named on the command line, as PNG."""
    figures = json.load(sys.stdin)
    plot, every = plt.subplots(1, len(WORKLOADS), figsize=(12, 4.5), layout="constrained")
    for axes, (name, workload) in zip(every, WORKLOADS.items(), strict=True):
        draw(axes, figures[name])
        axes.set_title(workload.title, fontsize=10)
    every[0].legend(frameon=False)
    plot.savefig(sys.argv[1], format="png", dpi=150)


if __name__ == "__main__":
    main()
