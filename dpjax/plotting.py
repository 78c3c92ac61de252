"""Figures of what a training released; matplotlib comes with the ``plot`` extra."""

import importlib.util
import os
from typing import Any

import numpy as np

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"


def require() -> None:
    """Raises ImportError, saying what to install, unless pictures can be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("pictures need matplotlib: pip install 'dpjax[plot]'.")


def plot_solution(solution: Any, path: str | os.PathLike, title: str) -> None:
    """Draws the released history of one training, or of a batch of them, with its certificate.

    Left: norm of the noisy gradient at each step, and the certified bound on the true one. Right:
    length of each step, and the radius and multiplier where the algorithm has them.

    Args:
      solution: a ``Solution``; under ``vmap`` the median and the middle 80 % are drawn.
      path: file to write; its ending fixes the format.
      title: printed above.

    Raises:
      ImportError: if matplotlib is not installed.

    Privacy: draws released values only.
    """
    require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    steps = int(np.max(np.asarray(solution.steps)))
    history = {
        name: np.atleast_2d(np.asarray(values))[:, :steps]
        for name, values in solution.history._asdict().items()
    }
    _band(left, history["gradient_norm"], BLUE, "noisy gradient norm")
    _certificate(left, solution.certificate, steps)
    left.set(xlabel="step", ylabel="gradient norm", yscale="log", title="Stationarity")
    _band(right, history["step_norm"], GREEN, "step length")
    if "radius" in history:
        _band(right, history["radius"], PINK, "trust radius", linestyle="--")
    right.set(xlabel="step", ylabel="length (parameter units)", yscale="log", title="Steps")
    handles, labels = right.get_legend_handles_labels()
    if "multiplier" in history:
        twin = right.twinx()
        # The multiplier is 0 inside the radius, which a logarithm cannot show.
        _band(twin, history["multiplier"], ORANGE, "multiplier (right axis)", linestyle=":")
        twin.set(ylabel="multiplier (dual variable)", ylim=(0, None))
        more = twin.get_legend_handles_labels()
        handles, labels = handles + more[0], labels + more[1]
    left.legend(frameon=False)
    right.legend(handles, labels, frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=150)


def _band(axes: Any, values: np.ndarray, color: str, label: str, linestyle: str = "-") -> None:
    step = np.arange(1, values.shape[1] + 1)
    if len(values) > 1:
        low, high = np.nanquantile(values, [0.1, 0.9], axis=0)
        axes.fill_between(step, low, high, color=color, alpha=0.2, linewidth=0)
        label += f" (median, 10-90 % of {len(values)} runs)"
    axes.plot(step, np.nanmedian(values, axis=0), color=color, label=label, linestyle=linestyle)


def _certificate(axes: Any, certificate: Any, steps: int) -> None:
    if certificate is None:
        return
    upper = float(np.median(np.asarray(certificate.gradient_norm_upper)))
    beta = float(np.min(np.asarray(certificate.beta)))
    where = steps if certificate.iterate == "last_query" else steps + 1
    axes.plot(
        [where],
        [upper],
        marker="v",
        color=ORANGE,
        linestyle="none",
        label=f"true gradient at most this\n(probability {1 - beta:.0%}, {certificate.scope})",
    )
