"""Sections of a page about what statistics found: a first look at a table, or an evaluation."""

import numpy as np

from dpjax import plotting
from dpjax.reporting import pictures
from dpjax.reporting.facts import Picture, Section
from dpjax.reporting.officer import unfilled
from dpjax.statistics import Description, Evaluation
from dpjax.statistics.bins import QUANTILES

_HOLD = (
    "All numbers have noise added; in 95 of 100 cases the range in parentheses holds the number "
    "without noise.",
    "Numbers beyond declared bounds are counted in the outermost bins.",
)


def description_sections(look: Description) -> list[Section]:
    """Returns the claim, what there is, and the guarantee; released and public values only."""
    text = str(look.solution.guarantee())
    said = [f"{look.records.words()} records count: training would drop the others."]
    if look.persons is not None:
        units = f"{look.persons.value:,.0f} units ({look.solution.unit})"
        said.append(f"{units} have a record that counts; below, each unit counts once, by the mean "
                    "of its records.")  # fmt: skip
    said.append(f"Noise on each count: standard deviation {look.stddev:.3g}.")
    rows = [
        [each.bins.name, f"{each.missing.value:.1%}"]
        + [e.words(each.bins.show) for e in (each.mean, *each.quantiles.values()) if e]
        for each in look.columns
        if each.mean
    ]
    head = ["column", "missing/other", "mean", *(f"{level:.0%}" for level in QUANTILES)]
    drawn = []
    for each in look.columns if plotting.is_available() else ():
        names = [*map(str, each.bins.levels)] or [each.bins.show(edge) for edge in each.bins.edges]
        svg = pictures.histogram(each.counts[1:], names, look.stddev)
        note = f"{each.missing.value:.1%} missing or not declared"
        drawn.append(Picture(each.bins.name, note, svg))
    sections = [
        Section("In short", [text.partition("\n")[0]], items=_HOLD),
        Section("What there is", said, head, rows, drawn),
    ]
    if look.correlation:
        pairs = [(pair, e.words("{:.2f}".format)) for pair, e in look.correlation.items()]
        sections.append(Section("Correlations", (), ("columns", "correlation"), pairs))
    return [*sections, Section("The guarantee in full", code=[text])]


def evaluation_sections(found: Evaluation) -> list[Section]:
    """Returns a ``statistics.Evaluation`` as sections of a page, see ``report``; all released."""
    rows = [line.split(": ", 1) for line in found.lines()[: len(found.estimates)]]
    drawn, shown = [], plotting.is_available()
    if shown and (roc := found.roc) is not None:
        note = f"share of {found.classes[1]} above a threshold, by that of {found.classes[0]}."
        drawn.append(Picture("ROC curve", note, pictures.shares(*roc)))
    if shown and (held := found.calibration):
        values, *ends = np.array(list(held.values())).T
        note = f"share of {found.classes[1]} among records, by their predicted probability."
        drawn.append(Picture("Calibration", note, pictures.shares([*held], values, ends)))
    text = ["From one noisy histogram, on a budget of its own.", found.lines()[len(rows)]]
    sections = [Section("On held-out records", text, ["measure", "value"], rows, drawn)]
    if (matrix := found.confusion) is not None:
        named = zip(found.classes, matrix, strict=True)
        cells = [[name, *(f"{x:,.0f}" for x in row)] for name, row in named]
        head = ["class", *(f"predicted {name}" for name in found.classes)]
        # Of two classes a number is the sum of those of half the bins.
        noise = found.stddev * np.sqrt(found.counts.size / matrix.size)
        ends = (
            f"In 95 of 100 cases a number is within {1.96 * noise:,.0f} of the one without noise."
        )
        note = "noisy numbers of records by class (rows) and predicted class (columns)."
        drawn = [Picture("Counts", note, pictures.matrix(matrix, found.classes))] if shown else []
        said = ["Noisy numbers of records.", ends]
        sections.append(Section("Confusion matrix", said, head, cells, drawn))
    text = unfilled(str(found.solution.guarantee()))
    return [*sections, Section("The guarantee of the evaluation", code=[text])]
