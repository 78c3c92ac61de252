"""Crash-safe runs: save the key, record the run in the ledger, and only then query the data."""

import contextlib
import dataclasses
import os
import time
import uuid
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._typing import Array, PyTree
from dpjax.accounting import Event, Ledger, LedgerError
from dpjax.datasets import Dataset
from dpjax.driver import fingerprint
from dpjax.driver.checkpoint import Checkpoint, Folder, ResumeMismatch, holds_run
from dpjax.driver.configuration import difference
from dpjax.driver.prepare import Training
from dpjax.mechanisms import as_key
from dpjax.placement.processes import Team
from dpjax.placement.shard import length

Place = str | os.PathLike
# Less often than this costs little; what a crash loses is time alone.
SAVE_SECONDS = 0.5
_HASHES = ("config", "params", "data_shape", "data", "ledger")


class RunFiles(NamedTuple):
    """Where a run is written down, if anywhere."""

    checkpoint: Place | None = None
    """A folder."""
    ledger: Ledger | Place | None = None
    """A ledger or its file."""
    label: str | None = None
    """The caller's word for the data; by default the data set's name."""
    part: str | None = None
    """The part of the ledger's data that is read; None for all."""

    def named(self, data: Dataset | PyTree) -> "RunFiles":
        """Returns the same with what a data set and an open ledger say of label and part."""
        label, part = self.label, self.part
        if label is None and isinstance(data, Dataset):
            label = data.name
        if label is None and self.ledger is not None:
            raise ValueError("label is required with ledger=: pass a name for these data.")
        if part is not None and self.ledger is None:
            raise ValueError("part= is a part that a ledger declares: pass ledger= too.")
        if part is None and isinstance(self.ledger, Ledger):
            part = self.ledger.part
        return self._replace(label=label, part=part)

    def check(self, event: Event) -> None:
        """Raises where a run would, for a ledger that does not admit it; writes nothing."""
        # A run that goes on spends nothing more.
        if self.ledger is None or (self.checkpoint and holds_run(self.checkpoint)):
            return
        # Read and not opened: this takes no lock.
        book = self.ledger if isinstance(self.ledger, Ledger) else Ledger.read(self.ledger)
        (book if self.part is None else book.of(self.part)).check(event)

    def opened(self, stack: contextlib.ExitStack) -> Ledger | None:
        """Returns the ledger, for the part that is read; the stack closes it."""
        book = self.ledger
        if book is not None and not isinstance(book, Ledger):
            book = stack.enter_context(Ledger.open(book))
        return None if book is None else book.of(self.part)


@contextlib.contextmanager
def unless_unwritable(what: str) -> Iterator[None]:
    """Makes a failure to write ``what`` a warning: what the budget has bought is not lost."""
    try:
        yield
    except (OSError, LedgerError) as error:
        warnings.warn(f"could not write {what} ({error})", RuntimeWarning, stacklevel=2)


@dataclasses.dataclass(eq=False, repr=False)
class Journal:
    """What a run writes down about itself: a checkpoint, a line in a ledger, both or neither.

    Args:
      reached: where the run is; at its start, of an earlier process if it is resumed.
      label: the caller's word for the data.
      reproducible: whether the key may come from a seed.

    Privacy: the intent is on the disk before the first oracle is asked, and the key before that, so
      that no intent is spent whose run cannot go on.
    """

    training: Training
    reached: Checkpoint
    folder: Folder | None
    ledger: Ledger | None
    label: str
    reproducible: bool
    team: Team
    _carry: Any = None
    """Arrays, and ``step``: how many were taken."""
    _written: float = 0.0

    def begin(self, carry: Any) -> Any:
        """Returns the carry to go on from; after it, unless it raises, the oracles may be asked."""
        resumed = bool(self.reached.leaves)
        if resumed:
            fresh, structure = jax.tree.flatten(carry)
            # Set in place of the fresh ones, not made anew: JAX's weak types are not in a NumPy
            # array, and without them the loop would be another program.
            both = zip(fresh, self.reached.leaves, strict=True)
            carry = structure.unflatten([new.at[...].set(old) for new, old in both])
        self.team.from_first(lambda: self._record(carry, resumed))
        self._carry, self._written = carry, time.monotonic()
        return carry

    def _record(self, carry: Any, resumed: bool) -> None:
        event, reached = self.training.event, self.reached
        if self.folder is not None and not resumed:
            if self.ledger is not None:  # else a refused run would leave its checkpoint
                self.ledger.check(event)
            self._write(self.folder, carry)
        if self.ledger is not None:
            self.ledger.reserve(
                run_id=reached.run_id,
                event=event,
                label=self.label,
                config_hash=reached.manifest["config"],
                resumed=resumed,
            )

    def save(self, carry: Any) -> None:
        """Notes where the run is, on disk if the last time is long enough ago."""
        self._carry = carry
        if time.monotonic() - self._written >= SAVE_SECONDS:
            self.end(carry)

    def end(self, carry: Any) -> None:
        """Writes the last step down; what follows is computed from it, again if need be."""
        self._carry = carry
        if self.folder is not None and int(carry.step) > self.reached.step:
            went_on = "the run goes on, and if it ends early, resumes from the one before"
            with unless_unwritable(f"a checkpoint; {went_on}"):
                self._write(self.folder, carry)

    def complete(self) -> None:
        """Writes into the ledger that the run has ended."""
        if self.ledger is not None:
            with unless_unwritable("the end of the run; its ledger shows it as spent, as it is"):
                self.ledger.complete(self.reached.run_id)

    def interrupted(self) -> str:
        """Saves what can be saved, and returns words on how to go on."""
        # Before ``begin`` nothing was asked and nothing is spent.
        if self._carry is None or (self.folder is None and self.ledger is None):
            return "interrupted"
        step = f"interrupted after step {int(self._carry.step)} of {self.training.steps}"
        spent = "the budget of the whole run is spent"
        if self.folder is None:
            return f"{step}; {spent}, and a run without a checkpoint cannot be resumed."
        self.end(self._carry)
        return (
            f"{step}; {spent}. The same call with checkpoint={os.fspath(self.folder.path)!r} (and "
            "key=None) goes on from what was saved and spends nothing more."
        )

    def _write(self, folder: Folder, carry: Any) -> None:
        leaves = tuple(map(np.asarray, jax.tree.leaves(carry)))
        reached = dataclasses.replace(self.reached, step=int(carry.step), leaves=leaves)
        self._written = time.monotonic()
        folder.write(reached)
        self.reached = reached


@contextlib.contextmanager
def journal(training: Training, kept: RunFiles) -> Iterator[Journal]:
    """Yields the journal of one run, resumed if ``kept.checkpoint`` holds one.

    Process 0 alone reads and writes there. On Ctrl-C the words say how to go on.
    """
    team = training.team
    if team.size < jax.process_count() and not (kept.checkpoint is None and kept.ledger is None):
        raise ValueError(
            "checkpoint= and ledger= in several processes are for records that lie on the devices "
            "of all: pass dpjax.distributed.shard(data), or run in one process."
        )
    with contextlib.ExitStack() as stack:
        ours: list[_OpenRun] = []

        def opened() -> _RunState:
            ours.append(_open(kept, training, stack))
            return ours[0].begun

        begun = _RunState(*team.from_first(opened))
        # A collective call: every process hashes its rows, so all of them must come here or none.
        content = ""
        if begun.hashed:
            rows = team.rows(length(training.examples))
            parts = team.gather(fingerprint.part(training.examples, begun.key, rows))
            content = fingerprint.joined(parts)
        manifest = team.from_first(lambda: ours[0].manifest(training, content))
        held = Checkpoint(begun.run_id, begun.key, begun.step, begun.leaves, manifest)
        # In the other processes there is nowhere to write.
        folder, ledger = (ours[0].folder, ours[0].ledger) if ours else (None, None)
        label = kept.label or ""
        written = Journal(training, held, folder, ledger, label, begun.reproducible, team)
        try:
            yield written
        except KeyboardInterrupt:
            raise KeyboardInterrupt(written.interrupted()) from None


class _RunState(NamedTuple):
    """Where a run is at its start, as process 0 tells the others; SECRET."""

    run_id: str
    words: np.ndarray
    implementation: str
    step: int
    leaves: tuple[np.ndarray, ...]
    reproducible: bool
    hashed: bool
    """Whether the content of the data is compared or noted."""

    @property
    def key(self) -> Array:
        return jax.random.wrap_key_data(jnp.asarray(self.words), impl=self.implementation)


@dataclasses.dataclass
class _OpenRun:
    """What a run is kept in, open, and what was found there."""

    begun: _RunState
    folder: Folder | None
    ledger: Ledger | None
    held: Checkpoint | None
    label: str | None

    def manifest(self, training: Training, content: str) -> dict[str, Any]:
        """Returns what must be the same to go on, after comparing it with what was found."""
        if self.folder is None and self.ledger is None:
            return {}
        described = training.described()
        if self.folder is None:
            return {"config": described.digest}
        now = {
            **fingerprint.environment(),
            "key_impl": self.begun.implementation,
            "params": fingerprint.arrays(training.params),
            "data_shape": fingerprint.shapes(training.examples, self.begun.key),
            "settings": described.settings,
            "config": described.digest,
            "label": self.label,
            **training.unit_of_privacy,
            "data": content,
            "ledger": None if self.ledger is None else self.ledger.identity,
            "reproducible": self.begun.reproducible,
        }
        if (held := self.held) is None:
            return now
        # Compared first, because a difference explains why the ledger lacks the run.
        _compare(held, now)
        # The checkpoint of step 0 is written before the intent; after a crash in between, the
        # ledger has no entry.
        if self.ledger is not None and held.step > 0 and held.run_id not in self.ledger:
            raise LedgerError(
                f"the ledger {self.ledger.path} is behind its checkpoint: run {held.run_id} took "
                f"{held.step} steps, but has no entry. Lines were removed; restore the ledger "
                "from a copy."
            )
        return now


def _open(kept: RunFiles, training: Training, stack: contextlib.ExitStack) -> _OpenRun:
    key, reproducible = training.key, training.reproducible
    book = kept.opened(stack)
    folder = None if kept.checkpoint is None else stack.enter_context(Folder(kept.checkpoint))
    held = None if folder is None else folder.read()
    if held is None:
        if key is None and folder is not None:
            raise ValueError(
                f"key=None resumes a run, and checkpoint={os.fspath(folder.path)!r} holds "
                "none; pass key=dpjax.random_key() to begin one."
            )
        root = as_key(key)  # pyright: ignore[reportArgumentType] # None is refused there
        start = Checkpoint(uuid.uuid4().hex, root, 0, (), {})
    else:
        root = held.key if key is None else as_key(key)
        # Keys of two implementations cannot be compared; their words can.
        one, other = (np.asarray(jax.random.key_data(each)) for each in (root, held.key))
        if not np.array_equal(one, other):
            raise ResumeMismatch(
                "key is not the one this checkpoint was begun with; pass key=None to resume "
                "with its own. To start another run, which spends the budget again, name "
                "another folder."
            )
        start, reproducible = held, held.manifest.get("reproducible", False)
    words, kind = np.asarray(jax.random.key_data(start.key)), str(jax.random.key_impl(start.key))
    place = start.run_id, words, kind, start.step, start.leaves
    begun = _RunState(*place, reproducible, folder is not None)
    return _OpenRun(begun, folder, book, held, kept.label)


def _compare(held: Checkpoint, now: dict[str, Any]) -> None:
    # Fields of both: one that is missing now differs too.
    for field in (*now, *held.manifest):
        was, is_ = held.manifest.get(field), now.get(field)
        if was == is_:
            continue
        if field == "settings":
            differs = difference(was or {}, is_ or {})
        else:
            if field in _HASHES:
                was, is_ = (f"#{value[:12]}" if value else value for value in (was, is_))
            differs = f"{field} was {was!r} when this checkpoint was made, and is {is_!r} now"
        raise ResumeMismatch(
            f"{differs}; resumed, run {held.run_id} would not repeat itself bit for bit. Restore "
            "it, or start another run with another folder and a new key, which spends the budget "
            "again."
        )
