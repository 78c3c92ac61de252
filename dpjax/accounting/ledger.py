"""``Ledger``: the privacy budget of one data set, and the runs that have spent it."""

import collections
import dataclasses
import datetime
import json
import math
import os
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from dpjax import _validate
from dpjax._lazy import dp_accounting
from dpjax.accounting import hash_chain
from dpjax.accounting.budget import PrivacyBudget
from dpjax.accounting.events import Event, compose
from dpjax.accounting.filters import Books, Cost, Limits, drawn, most_draws, steps, used
from dpjax.accounting.hash_chain import LedgerError
from dpjax.accounting.ledger_entries import Entry, check_lines, is_booked, outside_names, place
from dpjax.accounting.other_releases import outside
from dpjax.display.cards import Card, HasCard, counted

_FORMAT = "dpjax-ledger-3"


class Ledger(HasCard):
    """A declared budget and the runs that spend it, in an append-only file.

    An intent is on the disk before anything is released, so the budget of a run that dies stays
    spent. Each run may be chosen after seeing the results of those before: privacy filters admit
    it. What is fixed beforehand is accounted exactly: the first run or ``plan``, and more steps
    like its own. A Ledger holds a lock on its file until ``close``; use it in a ``with``. Threads
    may share it. A forked process may not: there ``reserve`` raises.

    Privacy: the file holds no data and no key; labels and settings of runs, and their costs. It
      shows what remains of the declared budget, never an epsilon spent so far: that is no guarantee
      if the next run depends on the last one. Anyone who can write the file can rewrite all of it:
      keep ``anchor`` elsewhere to notice.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        source: hash_chain.HashChainFile | hash_chain.HashChain,
        part: str | None = None,
    ):
        self.path, self.part, self._source = os.fspath(path), part, source
        # A file without a whole line declares nothing, and is refused below.
        declared = (lines := self._lines.lines or ({},))[0]
        # All versions of the format pass here; another number has another remedy.
        if not str(declared.get("format")).startswith(_FORMAT[:-1]):
            raise LedgerError(
                f"{self.path} holds no declared budget; make one with "
                f"`dpjax ledger create {self.path} --epsilon E --delta D`."
            )
        known = all(line.get("kind") in ("intent", "completion") for line in lines[1:])
        if not (known and declared["format"] == _FORMAT):
            raise LedgerError(f"{self.path} is of another version of dpjax; read it with that one.")
        try:
            self.parts: tuple[str, ...] = check_lines(lines)
            self.budget = PrivacyBudget(*(declared[k] for k in ("epsilon", "delta", "relation")))
            self.renyi_order: float | None = declared["renyi_order"]
            kind = not declared["unsampled"], declared["noise_draws"]
            self.books = Books(self.budget, self.renyi_order, *kind)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            raise LedgerError(f"{self.path} is damaged: it holds what no ledger writes.") from None

    @classmethod
    def create(
        cls,
        path: str | os.PathLike,
        budget: PrivacyBudget,
        *,
        renyi_order: float | None = None,
        unsampled: bool = False,
        parts: Sequence[str] = (),
    ) -> "Ledger":
        """Creates a ledger file and returns the ledger, open for writing.

        Args:
          path: a file that does not exist yet.
          budget: what all runs together may spend; cannot be changed later.
          renyi_order: of the book for all kinds of runs; by default the best at this budget.
          unsampled: whether to admit unsampled Gaussians alone, which then lose hardly anything.
          parts: names of parts of the data, of which each may spend the budget, see ``of``. That no
            unit of privacy is in two is your declaration, which nothing checks.

        Raises:
          ValueError: if the budget admits nothing at that order; for parts under ``replace_one``.
          FileExistsError: if the file exists.
        """
        PrivacyBudget.check(budget)
        if unsampled and renyi_order is not None:
            raise ValueError("unsampled=True needs no renyi_order; pass one of them.")
        listed = isinstance(parts, list | tuple)
        if parts and not (listed and len({*map(str, parts)}) == len(parts) > 1):
            got = _validate.shown(parts)
            raise ValueError(f"parts must be two or more different names, got {got}.")
        if parts and budget.relation == "replace_one":
            raise ValueError(
                "parts must be disjoint, and under 'replace_one' a replaced record may move to "
                "another part, which changes both; take 'zero_out' or 'add_or_remove_one'."
            )
        order, draws = None if renyi_order is None else float(renyi_order), most_draws(budget)
        Books(budget, order, not unsampled, draws)  # raises while there is no file yet
        first = {
            "kind": "declaration",
            "format": _FORMAT,
            "id": uuid.uuid4().hex,
            **dataclasses.asdict(budget),
            "renyi_order": order,
            "unsampled": unsampled,
            # Fixed at creation, because its cost is taken off the budget before any run.
            "noise_draws": draws,
            "parts": [_validate.word("parts", part) for part in parts],
            "at": _now(),
        }
        try:
            file = hash_chain.HashChainFile(path, first)
        except FileExistsError:
            raise FileExistsError(
                f"{os.fspath(path)} exists; a budget is declared once: open it by Ledger.open."
            ) from None
        return cls(path, file)

    @classmethod
    def open(cls, path: str | os.PathLike) -> "Ledger":
        """Returns the ledger in a file, open for writing and locked.

        Raises:
          LedgerError: if the file is damaged, or open for writing elsewhere. A last line that a
            crash has torn is dropped: its run had not begun.
          FileNotFoundError: if there is no such file.
        """
        try:
            file = hash_chain.HashChainFile(path)
        except (FileNotFoundError, IsADirectoryError):
            raise _absent(path) from None
        try:
            return cls(path, file)
        except BaseException:
            # Otherwise a refused file stays locked until its object is collected.
            file.close()
            raise

    @classmethod
    def read(cls, path: str | os.PathLike) -> "Ledger":
        """Returns the ledger in a file for reading only; takes no lock, and raises as ``open``."""
        try:
            return cls(path, hash_chain.read(path))
        except (FileNotFoundError, IsADirectoryError):
            raise _absent(path) from None

    def of(self, part: str | None) -> "Ledger":
        """Returns this ledger for one part, which must be declared; None for all of the data.

        Parts spend side by side: of each is left what runs leave that read it or all of the data,
        and of all of the data the least of any part.
        """
        # The ledger of one part gives no access to the others.
        parts = self.parts if self.part is None else (self.part,)
        if part is not None and part not in parts:
            known = " or ".join(map(repr, parts)) or "None, as without parts"
            raise ValueError(f"part must be {known}, of {self.path}, got {_validate.shown(part)}.")
        return Ledger(self.path, self._source, part)

    @property
    def _reads(self) -> tuple[str, ...]:
        # Without declared parts all data are one part, named by the empty string.
        return (self.part,) if self.part is not None else self.parts or ("",)

    @property
    def _lines(self) -> hash_chain.HashChain:
        one = self._source
        return one if isinstance(one, hash_chain.HashChain) else one.chain

    @property
    def identity(self) -> str:
        """Hash of the declaration; a checkpoint stores it to identify its ledger."""
        return self._lines.digests[0]

    @property
    def anchor(self) -> str:
        """Hash of the last line. A copy kept elsewhere shows later whether lines were removed."""
        return self._lines.head

    @property
    def torn(self) -> bool:
        """Whether a crash left an incomplete last line, which ``open`` would drop."""
        return self._lines.torn

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Every run, in order, on whatever part."""
        ended = {ln["run"]: ln["at"] for ln in self._lines.lines if ln["kind"] == "completion"}
        taken = collections.defaultdict(float)
        for part in self.parts or ("",):
            costs = self._booked(part)[1]
            # The book with more left admits the next run, so its fractions are shown.
            book = used(costs).index(min(used(costs)))
            for line, cost in zip(self._intents(part), costs, strict=True):
                taken[line["run"]] = max(taken[line["run"]], cost[book])
        return tuple(
            Entry(
                *(line[key] for key in ("run", "label", "config", "parent")),
                cost=min(1.0, taken[line["run"]]),
                overflow=line["overflow"],
                started=line["at"],
                finished=ended.get(line["run"]),
                draws=line["draws"],
                plan=(line.get("plan") or [None])[0],
                outside=next(iter(outside_names(line)), None),
                part=line.get("part"),
            )
            for line in self._intents()
        )

    def _intents(self, part: str = "") -> list[dict[str, Any]]:
        """The lines of all runs, or of those that read a part, with what they take of it."""
        lines = [line for line in self._lines.lines if line["kind"] == "intent"]
        reading = (line for line in lines if line.get("part") in (None, part))
        return [line | line["shares"][part] for line in reading] if part else lines

    def _booked(self, part: str = "") -> tuple[Limits, list[Cost]]:
        """What the first run fixed, before it that of one book; and what every run takes."""
        try:
            return self.books.read(self._intents(part))
        except (LookupError, TypeError, ValueError, AttributeError):
            raise LedgerError(f"{self.path} is damaged: it books what is no cost.") from None

    @property
    def remaining(self) -> float:
        """The fraction of the budget that is left, in the book that has more."""
        return min(max(0.0, 1 - min(used(self._booked(part)[1]))) for part in self._reads)

    @property
    def remaining_epsilon(self) -> float:
        """The epsilon still available to one unsampled release at the budget's delta."""
        return min(self.books.further_epsilon(*self._booked(part)) for part in self._reads)

    @property
    def advice(self) -> str:
        """What is left, in words; a run calibrated to the epsilon named there fits."""
        left = [self._booked(part) for part in self._reads]
        return self.books.advice(*min(left, key=lambda one: self.books.further_epsilon(*one)))

    def _card(self) -> Card:
        entries, budget = self.entries, self.budget
        runs, unfinished = counted(len(entries), "run"), sum(not one.finished for one in entries)
        rows = (
            ("declared", f"epsilon {budget.epsilon:.6g}, delta {budget.delta:.6g}"),
            ("relation", budget.relation),
            ("booked", runs + f", {unfinished:,} unfinished (but spent)" * bool(unfinished)),
            ("remaining", self.advice),
        )
        # The folder may name a person or a customer, and a card is what people publish.
        return Card(f"Ledger {os.path.basename(os.fsdecode(self.path))}", rows)

    def __contains__(self, run_id: str) -> bool:
        return any(entry.run_id == run_id for entry in self.entries)

    def covers(self, anchor: str) -> bool:
        """Returns whether ``anchor``, noted from this ledger before, is one of its lines."""
        return anchor in self._lines.digests

    def check(self, event: Event) -> float:
        """Returns the fraction of the budget that ``event`` would take, and writes nothing.

        Another thread may spend what is left before this one does; ``reserve`` checks again.

        Raises:
          ValueError: for an event of another relation, one without a place, or above the budget.
        """
        # In each part the book that charges less; over all parts the largest charge.
        return min(1.0, max(min(share["cost"]) for share in self._price(event)[1].values()))

    def _price(self, event: Event) -> tuple[list[Any] | None, dict[str, dict[str, Any]]]:
        """The place in a plan that has paid for a run, and what the run takes of each part."""
        plan, found, refused = place(self._lines.lines, event, self.part), {}, []
        for part in self._reads:
            limits, before = self._booked(part)
            # A planned run's draws were booked with its plan.
            lines = [line for line in self._intents(part) if "plan" not in line]
            booked = sum(ln["draws"] for ln in lines), math.fsum(ln["tails"] for ln in lines)
            try:
                limits = limits if before else self.books.limits(event)
                self.books.cost(event, limits)  # also a planned run may be one that no ledger books
                cost = (0.0, 0.0) if plan else self.books.price(event, limits, before, booked)
                # Only the line of the first run fixes the limits.
                fixed = {} if before or not self.books.both else {"limits": limits}
                found[part] = {"cost": cost, **fixed}
            except ValueError as error:
                refused.append(f"part {part!r}: {error}" if part else str(error))
        # Raised after all parts were asked, so that one error names all that refuse.
        if refused:
            raise ValueError(f"{self.path}: {' '.join(refused)}")
        return plan, found

    def reserve(
        self,
        *,
        run_id: str,
        event: Event,
        label: str,
        config_hash: str,
        parent: str | None = None,
        resumed: bool = False,
    ) -> None:
        """Records that a run is about to release, and returns once that is on the disk.

        Of several threads whose runs do not fit the budget together, one is admitted.

        Args:
          run_id: name of the run; it must be new unless the run is resumed.
          event: everything that the run may release.
          label: the caller's name for the data.
          config_hash: of the algorithm.
          parent: a run in this ledger that this one was forked from or chosen after.
          resumed: whether the run may be here already, because it goes on bit for bit from a
            checkpoint. If it is, with the same arguments, nothing more is spent.

        Raises:
          ValueError: as ``check``; for several events, a parent not here, or a run id in use.
          LedgerError: if the ledger is closed, opened to read, or opened before a fork.
          OSError: if it cannot be written. Then nothing may be released.
        """
        if not isinstance(event, Event):
            raise ValueError(
                f"event must be one Event, got {_validate.shown(event)}; compose or plan them."
            )
        intent = {
            "kind": "intent",
            "run": _validate.word("run_id", run_id),
            "parent": parent,
            "label": _validate.word("label", label),
            "config": _validate.word("config_hash", config_hash),
            "relation": event.relation,
            "releases": [release.to_json() for release in event.releases],
            "part": self.part,
        }
        intent = json.loads(json.dumps(intent))  # as it will be read

        def admitted() -> dict[str, Any] | None:
            if is_booked(self.path, self._intents(), intent, resumed):
                return None
            if parent is not None and parent not in self:
                got = _validate.shown(parent)
                raise ValueError(f"parent must be a run in {self.path}, got {got}.")
            plan, shares = self._price(event)
            for share in shares.values():
                share["cost"] = self.books.written(share["cost"])
            found = {
                "overflow": 0.0 if plan else event.failure_probability,
                "plan": plan,
                "draws": event.noise_draws,
                "tails": self.books.tails(event),
                **({"shares": shares} if self.parts else shares[""]),
            }
            return intent | {k: v for k, v in found.items() if v is not None} | {"at": _now()}

        # Decided and written under one lock: of two threads whose runs do not fit together, one is
        # refused.
        self._append(admitted)

    def plan(self, events: Sequence[Event], *, label: str) -> None:
        """Reserves for a list of runs that is fixed beforehand, or raises as ``check``.

        At the head of a ledger the list is accounted by exact composition. A run with the event of
        one on the list then takes that one's place, in any order, and costs nothing more.

        Args:
          events: ``algorithm.event`` of each run, chosen before any of their results.
          label: the caller's name for the data.
        """
        planned = [[run.relation, steps(run), self.part, drawn(run)] for run in events]
        self._book("plan", compose(events), label, planned=planned)

    def spend(self, event: "dp_accounting.DpEvent", *, label: str) -> None:
        """Books what another program has released of these data, each time that it is called.

        Args:
          event: what was released, of sensitivities for the ledger's relation. A noise multiplier
            is over the bound of one record, as ``dp_accounting`` defines it; under ``replace_one``
            a sum moves by twice that, which is accounted for here.
          label: the caller's name for the data.

        Raises:
          ValueError: as ``check``; for an event of which ``dp_accounting`` knows no finite Renyi
            divergence under the ledger's relation.
        """
        self._book("outside", outside(event, self.budget.relation), label)

    def _book(self, kind: str, event: Event, label: str, **more: Any) -> None:
        name = uuid.uuid4().hex
        # The intent comes first, so that a crash between the two lines leaves the budget spent.
        self.reserve(run_id=name, event=event, label=label, config_hash=kind)
        self._append(lambda: {"kind": "completion", "run": name, "at": _now()} | more)

    def complete(self, run_id: str) -> None:
        """Records that a run has ended; raises ValueError if the ledger has no such run."""

        def ended() -> dict[str, Any] | None:
            finished = {entry.run_id: entry.finished for entry in self.entries}
            _validate.choice("run_id", run_id, list(finished))
            # A resumed run may end a second time, which is recorded once.
            return None if finished[run_id] else {"kind": "completion", "run": run_id, "at": _now()}

        self._append(ended)

    def close(self) -> None:
        """Closes the file and releases its lock."""
        if isinstance(self._source, hash_chain.HashChainFile):
            self._source.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # Two objects would share the descriptor, and each would know only the lines it wrote itself.
    def __copy__(self, memo: dict[int, Any] | None = None) -> "Ledger":
        return self

    __deepcopy__ = __copy__

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a Ledger holds an open, locked file and cannot be pickled; pass its path "
            f"{self.path!r} instead."
        )

    def _append(self, decide: Callable[[], dict[str, Any] | None]) -> None:
        if isinstance(self._source, hash_chain.HashChain):
            raise LedgerError(f"{self.path} was opened to read; open it with Ledger.open.")
        self._source.append(decide)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _absent(path: str | os.PathLike) -> Exception:
    if os.path.isdir(path):
        return LedgerError(f"{os.fspath(path)} is a folder, and a ledger is a file: name that.")
    return FileNotFoundError(
        f"there is no ledger {os.fspath(path)}; declare its budget first: "
        f"`dpjax ledger create {os.fspath(path)} --epsilon E --delta D [--relation R]`."
    )
