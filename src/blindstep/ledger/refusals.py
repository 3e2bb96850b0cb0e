"""Why a ledger or a checkpoint refuses to go on: one class for each remedy.

Every message names the file and says what to do. The ledger holds every release that was made before
any of these is raised: a refusal can cost a run, never a person's privacy.
"""

from __future__ import annotations

from blindstep.errors import BlindstepError


class StorageError(BlindstepError):
    """A ledger or a checkpoint that cannot be used as it stands."""


class ProcessLost(StorageError):
    """Another process of a run over `jax.distributed` has stopped, or is not reached any more."""


class LedgerError(StorageError):
    """The ledger refuses; nothing may be released."""


class LedgerUnwritable(LedgerError):
    """The disk did not take an entry (full, read-only, failing): its release must not happen."""


class LedgerUnreadable(LedgerError):
    """The ledger's file is missing, or this user may not read it."""


class LedgerBusy(LedgerError):
    """Another process, or another object in this process, is writing to this ledger."""


class LedgerDamaged(LedgerError):
    """An entry is not what was written: flipped bits, or a missing, doubled or foreign line."""


class LedgerTruncated(LedgerError):
    """The ledger holds fewer entries than a checkpoint has seen in it."""


class LedgerMismatch(LedgerError):
    """The wrong ledger, or the wrong plan or data for a run that is in it."""


class RecordsConsumed(LedgerError):
    """These steps were begun before: their records are used up in this pass."""


class NoiseReused(LedgerError):
    """Another run already used this noise key: the two releases would cancel the noise."""


class BudgetExceeded(LedgerError):
    """The charge would spend more than these people's budget."""


class CheckpointError(StorageError):
    """The checkpoint refuses."""


class CheckpointUnwritable(CheckpointError):
    """The disk did not take the checkpoint; the one before it is untouched."""


class CheckpointDamaged(CheckpointError):
    """A checkpoint file is missing or is not what was written.

    Attributes:
        previous_position: position of the checkpoint before it, if that one is whole; else None.
    """

    previous_position: int | None = None


class CheckpointMismatch(CheckpointError):
    """A whole checkpoint, but of another run, plan or data set."""
