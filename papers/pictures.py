"""Pictures: one style for all, made from kept results alone. Needs matplotlib (extra ``tables``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from papers.figure import Figure

#: Whose curve it is, everywhere.
COLOURS = {
    "alone": "#444444",
    "paper": "#c0392b",
    "repaired": "#2c6fbb",
    "ours": "#1e8449",
    "no noise": "#999999",
    "other": "#b9770e",
}
STYLE = {
    "figure.figsize": (6.4, 3.4),
    "figure.dpi": 150,
    "figure.facecolor": "white",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.titlesize": 9,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.5,
    "savefig.bbox": "tight",
    # Text stays text, and the same data give the same file.
    "svg.fonttype": "none",
    "svg.hashsalt": "cloister",
}


def picture(figure: Figure, data: dict[str, Any], *paths: Path) -> None:
    """Draw a figure and save it under each of these paths, in the format of its ending."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    with mpl.rc_context(STYLE):
        canvas = Canvas(layout="constrained")
        FigureCanvasAgg(canvas)
        figure.module.draw(data, canvas)
        for axes in canvas.axes:
            axes.minorticks_off()  # on logarithmic axes they are half of a file
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            canvas.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
            if path.suffix == ".svg":
                lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
                path.write_text("\n".join(line for line in lines if line) + "\n", encoding="utf-8")


def curve(
    axes: Any, x: list[float], points: list[list[float]], label: str, whose: str, style: str = "-o"
) -> None:
    """Draw means with their standard errors."""
    y, error = zip(*points, strict=True)
    axes.errorbar(x, y, yerr=error, fmt=style, color=COLOURS[whose], label=label, capsize=2, elinewidth=0.8)


def legend(figure: Any, columns: int = 3) -> None:
    """Put one legend for all panels below them, where it hides nothing."""
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(entries.values(), entries, loc="outside lower center", ncols=columns)


def at(axes: Any, values: list[float]) -> None:
    """Mark a logarithmic horizontal axis at these values, and nowhere else."""
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.set_xticks([], minor=True)


def level(axes: Any, point: list[float], label: str, whose: str, style: str = "--") -> None:
    """Draw what does not depend on the horizontal axis."""
    axes.axhline(point[0], color=COLOURS[whose], linestyle=style, linewidth=1, label=label)
