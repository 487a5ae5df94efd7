"""Draws requests per second against connections, from the figures on its input; runs where matplotlib is."""

import json
import sys
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from benchmarks._gru import WORKLOADS
from benchmarks._harness import Quartiles

COLOURS = {"Tesseract": "C7", "ours": "C0"}
STYLES = {"safetensors": "--"}


def draw(axes: Axes, figures: Mapping[str, Any]) -> None:
    """Draw one workload: a line for each server and format, with the quartiles of the rounds."""
    counts = [int(count) for count in figures["served"]]
    for results in zip(*figures["served"].values(), strict=True):
        name, _, codec = results[0]["name"].partition(", ")
        low, median, high = (np.array([result["rate"][which] for result in results]) for which in Quartiles._fields)
        style = {"color": COLOURS[name], "linestyle": STYLES.get(codec, "-"), "marker": "o", "markersize": 4}
        axes.errorbar(counts, median, [median - low, high - median], capsize=2, label=results[0]["name"], **style)
    axes.set(xscale="log", xlabel="connections", ylabel="requests per second")
    axes.set_ylim(bottom=0)
    axes.set_xticks(counts, figures["served"])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Write the plot to the file named on the command line, as PNG."""
    figures = json.load(sys.stdin)
    plot, every = plt.subplots(1, len(WORKLOADS), figsize=(10, 4), layout="constrained")
    for axes, (name, workload) in zip(every, WORKLOADS.items(), strict=True):
        draw(axes, figures[name])
        axes.set_title(workload.title, fontsize=10)
    every[0].legend(frameon=False)
    plot.savefig(sys.argv[1], format="png", dpi=150)


if __name__ == "__main__":
    main()
