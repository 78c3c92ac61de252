"""What a data protection officer asks of a trained model, and the section that answers it."""

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any

from dpjax.accounting import Release
from dpjax.datasets import Preprocessing
from dpjax.datasets.scaled import fields_of
from dpjax.display.cards import ceil
from dpjax.reporting.facts import Facts
from dpjax.reporting.frame import Section

QUESTIONS = {
    "Who made this, when and with what, and whom do I ask?": "Who made this, and when",
    "What is it for?": "What it is for",
    "Whose data, which columns, and which were left out?": "What was declared of the data",
    "Who is protected: a record, or a person with all records?": "Who is protected",
    "What can an attacker learn of one person?": "What an attacker can learn",
    "How were epsilon and delta chosen?": "How epsilon and delta were chosen",
    "How much of the budget is left?": "What is left of the budget",
    "What does the guarantee not cover?": "What is not covered",
    "Who can repeat or check it?": "Who can repeat or check this",
    "What has to be kept, and what deleted?": "What to keep, and what to delete",
    "What is published?": "What was released",
    "Which guarantee is it, and what does it rest on?": "The guarantee in full",
}
"""Question of an officer -> heading that answers it; the last stands at the end of the page."""
_UNKNOWN = "not stated"


def sections(facts: Facts) -> Iterator[Section]:
    """Yields the answers but the last, in the order of ``QUESTIONS``.

    Privacy: released and public values only.
    """
    what, data = facts.description, facts.preprocessing
    heads = iter(QUESTIONS.values())
    rows = [("made by", what.author or _UNKNOWN), ("model saved", what.date or _UNKNOWN)]
    rows += [("algorithm", what.algorithm), ("objective", what.objective)]
    rows += [("penalty", what.penalty or _UNKNOWN), ("clip norms", what.clip_norms or _UNKNOWN)]
    yield Section(next(heads), rows=rows)
    yield Section(
        next(heads),
        [
            "This program does not know. Purpose, legal basis and for how long the model is used "
            "have to be added by whoever publishes this page."
        ],
    )
    yield _declared(next(heads), data)
    several = "If a person may have several, each is protected by itself, not the person. "
    if data is not None and data.max_records is not None:
        several = f"The first {data.max_records:,} records of each count; others were left out. "
    yield Section(
        next(heads),
        [
            f"One {what.unit}. {several}For k of them together, such as a family, the guarantee is "
            "weaker, by the rule that it states under Unit of privacy.",
        ],
    )
    yield Section(
        next(heads),
        [
            facts.meaning,
            f"Whoever knows everything but this one {what.unit}, and makes the best use of all "
            "that is published, finds at most the shares below. True less false positives are "
            f"never more than {ceil(100 * facts.advantage, 3)} %, and of guesses between two "
            f"cases as likely as not at most {ceil(50 * (1 + facts.advantage), 3)} % are right. "
            "The bounds follow from epsilon at several values of delta, whatever the attacker "
            "knows or computes.",
        ],
        ("false positives", "true positives at most"),
        [(f"{100 * at:.3g} %", f"{ceil(100 * most, 3)} %") for at, most in facts.found.items()],
    )
    expected = what.delta * what.records
    default = ", the default of dpjax: 1/(10 n)" if math.isclose(expected, 0.1) else ""
    yield Section(
        next(heads),
        [
            f"Epsilon {ceil(facts.epsilon)} and delta {ceil(what.delta)}{default} were declared "
            "before the training. Why they suffice is for whoever publishes the page to say.",
            f"Delta times the {what.records:,} declared records is {ceil(expected)}. To publish "
            "each in full with probability delta, that many on average, would meet the same "
            "delta with epsilon 0, so it should be well below 1.",
        ],
    )
    told = (
        "What the ledger of these records said when this page was written. A training is booked "
        "before it begins, so that one that failed is spent."
        if facts.budget
        else "No ledger was named, so this page cannot say what else was released from the same "
        "records. All of it adds up; dpjax ledger and --ledger keep the account."
    )
    yield Section(next(heads), [told], rows=facts.budget)
    yield Section(
        next(heads),
        items=[
            "Other trainings, counts or pictures from the same data: their guarantees must be "
            "composed with this one.",
            "A choice of settings, columns, bounds or levels that was made with a look at the "
            "records.",
            "Predictions for records that the model was trained on: they are computed from the "
            "features of those records.",
            "What follows about a person from what holds of people: a model may learn that smokers "
            "fall ill, and would have learned it without any one of them.",
        ],
    )
    yield Section(
        next(heads),
        items=[
            "Nobody can draw the same noise again: its key is random, and neither in the model nor "
            "on this page. Whoever holds the records can train anew, which spends more.",
            "Anybody can recount epsilon from the releases in the model's file, by dpjax show, "
            "and attack the program by dpjax audit; the guarantee rests on proofs.",
        ],
    )
    yield Section(
        next(heads),
        items=[
            "Delete the checkpoint once the run has ended, or keep it as secret as the records: it "
            "holds the key, by which the noise can be subtracted. So do rows that were scaled and "
            "written: they are the records.",
            "Keep the ledger as long as the records: nothing else knows what was spent.",
            "What is published cannot be called back, also not for a person who withdraws later; "
            "the guarantee bounds what it tells of that person, for good.",
            "No hash of the table is on this page: it would let whoever has a copy, or a guess, of "
            "the records confirm them. Note it where the records are.",
        ],
    )
    yield _released(next(heads), facts)


def _declared(heading: str, data: Preprocessing | None) -> Section:
    told = "Public knowledge that the training was told; none of it was read off the records."
    if data is None or not data.columns:
        return Section(heading, [told, "Arrays have no columns that could be named."])
    rows = []
    label = data.label or "label"
    if data.classes is not None:
        rows.append((label, f"the label: one of {_listed(data.classes)}"))
    if data.label_bounds is not None:
        rows.append((label, f"the label: a number from {_spread(data.label_bounds)}"))
    for column in data.encoders:
        of = column.declaration()
        words = [
            f"from {_spread(of['bounds'])}" if "bounds" in of else "",
            f"in order {_listed(of['order'])}" if "order" in of else "",
            f"one of {_listed(of['levels'])}" if "levels" in of else "",
            "any other level counts as other" if of.get("other") else "",
            f"an empty cell counts as {_plain(of['missing'])}" if "missing" in of else "",
        ]
        rows.append((column.name, "; ".join(filter(None, words)) or "used unchanged"))
    if data.intercept:
        rows.append(("intercept", "a feature that is 1 in every record"))
    if data.unit is not None:
        rows.append((data.unit, "says whose a record is; not used otherwise"))
    if data.ignored:
        rows.append(("not used", _listed(data.ignored)))
    return Section(heading, [told, f"Fingerprint (SHA-256): {fingerprint(data)}"], (), rows)


def fingerprint(data: Preprocessing) -> str:
    """Returns the SHA-256 of what was declared, which two pages of one declaration share.

    Privacy: of declared values. That of a table would be a function of its records without noise.
    """
    return hashlib.sha256(json.dumps(fields_of(data), sort_keys=True).encode()).hexdigest()


def _released(heading: str, facts: Facts) -> Section:
    text = [
        "The training saw the records only through these answers, each with random noise. The "
        "sensitivity is the most by which one record can move an answer, or, where records are "
        "drawn, the most that a drawn one adds; the noise multiplier is the noise over it."
    ]
    if facts.answers:
        text.append(
            "Intervals beside an accuracy or a count are about the noise alone: each holds the "
            "exact number of these records with probability 95 %."
        )
    for search in facts.releases:
        if search.mechanism == "search":
            text.append(_searched(search))
    head = "answer", "times", "records", "sensitivity", "multiplier", "standard deviation of noise"
    rows = []
    for part in (part for release in facts.releases for part in release.parts()):
        noises = [f"{name}: {std:.4g}" for name, std in part.components] or [f"{part.stddev:.4g}"]
        name, drawn = part.name.replace("_", " "), _records(part)
        numbers = ceil(part.sensitivity), f"{part.noise_multiplier:.5g}"
        rows.append((name, f"{part.count:,}", drawn, *numbers, ", ".join(noises)))
    return Section(heading, text, head, rows)


def _searched(search: Any) -> str:
    other = " Other settings have other noise." if len(search.trainings) > 1 else ""
    return (
        f"The settings were chosen by a private random search over {search.settings:,}: this "
        f"training had the largest score of K, a random number with mean "
        f"{search.number.expected:.4g} and at most {search.cap:,}. K and the other trainings are "
        f"secret. Listed are the answers of one training.{other}"
    )


def _records(release: Release) -> str:
    if release.sampling == "without_replacement":
        return f"a random {release.max_batch_size:,}"
    if release.is_subsampled:
        return f"each with probability {release.sampling_probability:.4g}"
    return "each in at most one answer" if release.ends_early else "all"


def _listed(words: Any) -> str:
    return ", ".join(map(str, words))


def _spread(pair: Any) -> str:
    return " to ".join(map(_plain, pair))


def _plain(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)
