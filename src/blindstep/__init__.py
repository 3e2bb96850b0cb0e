"""blindstep: differentially private optimization from function values alone.

import blindstep as bs

result = bs.minimize(loss, params, data, privacy=bs.Privacy(epsilon=4, delta=1e-5),
                     radius=0.1, lipschitz=1.0, horizon=16)
print(result.privacy)
"""

from blindstep.drivers import host
from blindstep.drivers.callbacks import LossFailed
from blindstep.drivers.compiled import minimize
from blindstep.drivers.engines import EngineLost
from blindstep.drivers.optimizer import Optimizer
from blindstep.drivers.result import History, Result
from blindstep.errors import (
    BlindstepError,
    HorizonExceeded,
    InvalidArgument,
    NoEntropy,
    SecretCopied,
    VacuousPlan,
)
from blindstep.estimate.bounds import Bounds, Clip, Lipschitz, Range
from blindstep.insight.audit import Audit, audit
from blindstep.insight.certificate import Certificate, certificate
from blindstep.insight.clipping import fraction_clipped
from blindstep.insight.report import report
from blindstep.ledger.refusals import (
    BudgetExceeded,
    CheckpointDamaged,
    CheckpointError,
    CheckpointMismatch,
    CheckpointUnwritable,
    LedgerBusy,
    LedgerDamaged,
    LedgerError,
    LedgerMismatch,
    LedgerTruncated,
    LedgerUnreadable,
    LedgerUnwritable,
    NoiseReused,
    RecordsConsumed,
    StorageError,
)
from blindstep.optimize.plan import Plan
from blindstep.optimize.planner import plan
from blindstep.private.statement import Privacy, Statement

__version__ = "0.1.0"

__all__ = [
    "Audit",
    "BlindstepError",
    "Bounds",
    "BudgetExceeded",
    "Certificate",
    "CheckpointDamaged",
    "CheckpointError",
    "CheckpointMismatch",
    "CheckpointUnwritable",
    "Clip",
    "EngineLost",
    "History",
    "HorizonExceeded",
    "InvalidArgument",
    "LedgerBusy",
    "LedgerDamaged",
    "LedgerError",
    "LedgerMismatch",
    "LedgerTruncated",
    "LedgerUnreadable",
    "LedgerUnwritable",
    "Lipschitz",
    "LossFailed",
    "NoEntropy",
    "NoiseReused",
    "Optimizer",
    "Plan",
    "Privacy",
    "Range",
    "RecordsConsumed",
    "Result",
    "SecretCopied",
    "Statement",
    "StorageError",
    "VacuousPlan",
    "audit",
    "certificate",
    "fraction_clipped",
    "host",
    "minimize",
    "plan",
    "report",
]
