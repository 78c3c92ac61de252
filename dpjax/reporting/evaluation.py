"""The sections of a page about how good a model is on held-out records."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dpjax import plotting
from dpjax.reporting import pictures
from dpjax.reporting.frame import Picture, Section
from dpjax.reporting.officer import unfilled


def evaluation_sections(found: Any) -> list[Section]:
    """Returns a ``statistics.Evaluation`` as sections of a page, see ``report``; all released."""
    rows = [line.split(": ", 1) for line in found.lines()[: len(found.estimates)]]
    drawn = list(_pictures(found)) if plotting.is_available() else []
    text = ["From one noisy histogram, on a budget of its own.", found.lines()[len(rows)]]
    sections = [Section("On held-out records", text, ["measure", "value"], rows, drawn)]
    if (matrix := found.confusion) is not None:
        named = zip(found.classes, matrix, strict=True)
        cells = [[name, *(f"{x:,.0f}" for x in row)] for name, row in named]
        head = ["class", *(f"predicted {name}" for name in found.classes)]
        sections.append(Section("Confusion matrix", ["Noisy numbers of records."], head, cells))
    text = unfilled(str(found.solution.guarantee()))
    return [*sections, Section("The guarantee of the evaluation", code=[text])]


def _pictures(found: Any) -> Iterator[Picture]:
    if (roc := found.roc) is not None:
        note = f"share of {found.classes[1]} above a threshold, by that of {found.classes[0]}."
        yield Picture("ROC curve", note, pictures.shares(*roc))
    if held := found.calibration:
        values, *ends = np.array(list(held.values())).T
        note = f"share of {found.classes[1]} among records, by their predicted probability."
        yield Picture("Calibration", note, pictures.shares([*held], values, ends))
