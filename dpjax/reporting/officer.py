"""What a report says, as sections: the answers to what a data protection officer asks first."""

import json
import math
import pathlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpjax._program import sha256
from dpjax.algorithms.certificate import ITERATES
from dpjax.datasets import Preprocessing
from dpjax.datasets.scaled import fields_of
from dpjax.display.cards import ceil, one_line
from dpjax.reporting.facts import Facts, Section
from dpjax.results.guarantee import COLUMNS, open_template


def sections(facts: Facts, model: str, exact: Mapping[str, float] | None = None) -> list[Section]:
    """Returns what there is to say, but for what the model's own pictures show.

    Privacy: released and public values only, but for ``exact``.
    """
    what, data, held = facts.description, facts.preprocessing, facts.coefficients
    text = _TEMPLATE.render(
        facts=facts,
        exact=exact,
        # Of declared values: that of a table would be a function of its records without noise.
        fingerprint=sha256(json.dumps(fields_of(data), sort_keys=True)),
        iterates=ITERATES,
        is_default=math.isclose(what.delta * what.records, 0.1),
    )
    tables = {
        "numbers": list(_numbers(facts)),
        "exact": [(name, f"{value:.6g}") for name, value in (exact or {}).items()],
        "declared": [] if data is None else list(_declared(data)),
        "found": [(f"{100 * x:.3g} %", f"{ceil(100 * y, 3)} %") for x, y in facts.found.items()],
        "budget": facts.budget,
        "released": [row for each in facts.releases for row in map(_released, each.parts())],
    }
    command = ["dpjax", "predict", model, "new.csv", "--out", "predictions.csv"]
    rows = "rows" if data is None else "'new.csv'"
    kept = {
        # Captions are paragraphs of the section.
        "coefficients": held and held.summary().rpartition("\n\n")[0],
        "command": shlex.join(command),
        "python": f"dpjax.load({model!r}).predict({rows})",
        "guarantee": unfilled(facts.guarantee),
    }
    found: list[dict[str, Any]] = []
    for words in re.split(r"\n\s*\n|\n(?=(?:##|-|\||>) )|(?<=\n)(?=## )", text.strip()):
        kind, _, rest = words.partition(" ")
        heading, _, first = rest.partition("\n") if kind == "##" else ("", "", words)
        if heading:
            found.append({"heading": heading, "text": [], "items": [], "code": []})
        if kind == "|":
            name, _, heads = rest.partition(": ")
            found[-1] |= {"head": heads.split(", ") if heads else (), "rows": tables[name]}
        elif kind == ">":
            found[-1]["code"].append(kept[rest.strip()])
        elif words := one_line(rest if kind == "-" else first):
            found[-1]["items" if kind == "-" else "text"].append(words)
    return [Section(**one) for one in found]


def _numbers(facts: Facts) -> Iterator[Sequence[str]]:
    what = facts.description
    yield "epsilon", ceil(facts.epsilon)
    yield "delta", ceil(what.delta)
    yield "protected", f"one {what.unit}"
    yield "records declared", f"{what.records:,}"
    yield "made by", what.author or "not stated"
    yield "date of the model", what.date or "not stated"
    for name in ("algorithm", "objective", "penalty", "clip_norms"):
        yield name.replace("_", " "), getattr(what, name) or "not stated"
    yield "steps", f"{facts.steps:,} of {what.steps:,}"
    if facts.status is not None:
        yield "status", facts.status.message.rstrip(".")
    yield "parameters", f"{facts.parameters:,}"
    yield from (line.split(": ", 1) for line in facts.answer_lines)


def _declared(data: Preprocessing) -> Iterator[tuple[str, str]]:
    label = data.label or "label"
    if data.classes is not None:
        yield label, f"the label, one of {_listed(data.classes)}"
    if data.label_bounds is not None:
        yield label, f"the label, from {' to '.join(map(_plain, data.label_bounds))}"
    for column in data.encoders:
        of = column.declaration()
        words = (
            "from " + " to ".join(map(_plain, of["bounds"])) if "bounds" in of else "",
            f"in order {_listed(of['order'])}" if "order" in of else "",
            f"one of {_listed(of['levels'])}" if "levels" in of else "",
            "any other level counts as other" if of.get("other") else "",
            f"an empty cell counts as {_plain(of['missing'])}" if "missing" in of else "",
        )
        yield column.name, "; ".join(filter(None, words)) or "used unchanged"
    if data.intercept:
        yield "intercept", "a feature that is 1 in every record"
    if data.unit is not None:
        yield data.unit, "says whose a record is; not used otherwise"
    if data.ignored:
        yield "not used", _listed(data.ignored)


def _released(part: Any) -> tuple[str, ...]:
    records = "each in at most one answer" if part.ends_early else "all"
    if part.is_subsampled:
        records = f"each with probability {part.sampling_probability:.4g}"
    noises = [f"{name}: {std:.4g}" for name, std in part.components] or [f"{part.stddev:.4g}"]
    numbers = ceil(part.sensitivity), f"{part.noise_multiplier:.5g}"
    return part.name.replace("_", " "), f"{part.count:,}", records, *numbers, ", ".join(noises)


def unfilled(text: str) -> str:
    """Returns sentences that were filled to 100 columns as one line each, for any screen."""
    # A line that ends because the next word did not fit is one sentence with the next line.
    lines, before = [""], ""
    for line in text.splitlines():
        word = line.partition(" ")[0]
        full = len(before) <= COLUMNS < len(before) + 1 + len(word)
        if line.startswith("    ") or (full and word and not before.startswith(" ")):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
        before = line
    return "\n".join(lines[1:])


def _listed(words: Sequence[Any]) -> str:
    # As pandas writes it, an index has no name.
    return ", ".join(str(word) or "the column without a name" for word in words)


def _plain(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


_TEMPLATE = open_template(pathlib.Path(__file__).with_name("report.txt"))
