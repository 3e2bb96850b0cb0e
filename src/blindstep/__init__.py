"""blindstep: differentially private optimization from function values alone.

import blindstep as bs

result = bs.minimize(loss, params, data, privacy=bs.Privacy(epsilon=1, delta=1e-6))
print(result.privacy)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors; at run time the table below does it
    from blindstep.drivers import host
    from blindstep.drivers.callbacks import LossFailed
    from blindstep.drivers.columns import encode
    from blindstep.drivers.compiled import minimize
    from blindstep.drivers.engines import EngineLost
    from blindstep.drivers.optimizer import Optimizer
    from blindstep.drivers.result import History, Result
    from blindstep.drivers.tune import Tuned, tune
    from blindstep.drivers.values import Value, value
    from blindstep.errors import (
        BlindstepError,
        HopelessPlan,
        HorizonExceeded,
        InvalidArgument,
        LargeDelta,
        LossNotFinite,
        NoEntropy,
        RunsInEvaluationMode,
        SecretCopied,
        VacuousPlan,
    )
    from blindstep.estimate.bounds import Bounds, Clip, Lipschitz, Range
    from blindstep.estimate.scales import Scales
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
        ProcessLost,
        RecordsConsumed,
        StorageError,
    )
    from blindstep.optimize.plan import Plan
    from blindstep.optimize.planner import plan
    from blindstep.private.statement import Privacy, Statement

__version__ = "0.2.0"

# Where each name lives. It is imported when it is first asked for (PEP 562): JAX takes a second to
# import, and whoever asks for help or catches an error need not wait for it.
_HOMES = {
    "Audit": "blindstep.insight.audit",
    "BlindstepError": "blindstep.errors",
    "Bounds": "blindstep.estimate.bounds",
    "BudgetExceeded": "blindstep.ledger.refusals",
    "Certificate": "blindstep.insight.certificate",
    "CheckpointDamaged": "blindstep.ledger.refusals",
    "CheckpointError": "blindstep.ledger.refusals",
    "CheckpointMismatch": "blindstep.ledger.refusals",
    "CheckpointUnwritable": "blindstep.ledger.refusals",
    "Clip": "blindstep.estimate.bounds",
    "EngineLost": "blindstep.drivers.engines",
    "History": "blindstep.drivers.result",
    "HopelessPlan": "blindstep.errors",
    "HorizonExceeded": "blindstep.errors",
    "InvalidArgument": "blindstep.errors",
    "LargeDelta": "blindstep.errors",
    "LedgerBusy": "blindstep.ledger.refusals",
    "LedgerDamaged": "blindstep.ledger.refusals",
    "LedgerError": "blindstep.ledger.refusals",
    "LedgerMismatch": "blindstep.ledger.refusals",
    "LedgerTruncated": "blindstep.ledger.refusals",
    "LedgerUnreadable": "blindstep.ledger.refusals",
    "LedgerUnwritable": "blindstep.ledger.refusals",
    "Lipschitz": "blindstep.estimate.bounds",
    "LossFailed": "blindstep.drivers.callbacks",
    "LossNotFinite": "blindstep.errors",
    "NoEntropy": "blindstep.errors",
    "NoiseReused": "blindstep.ledger.refusals",
    "Optimizer": "blindstep.drivers.optimizer",
    "Plan": "blindstep.optimize.plan",
    "Privacy": "blindstep.private.statement",
    "ProcessLost": "blindstep.ledger.refusals",
    "Range": "blindstep.estimate.bounds",
    "RecordsConsumed": "blindstep.ledger.refusals",
    "Result": "blindstep.drivers.result",
    "RunsInEvaluationMode": "blindstep.errors",
    "Scales": "blindstep.estimate.scales",
    "SecretCopied": "blindstep.errors",
    "Statement": "blindstep.private.statement",
    "StorageError": "blindstep.ledger.refusals",
    "Tuned": "blindstep.drivers.tune",
    "VacuousPlan": "blindstep.errors",
    "Value": "blindstep.drivers.values",
    "audit": "blindstep.insight.audit",
    "certificate": "blindstep.insight.certificate",
    "encode": "blindstep.drivers.columns",
    "fraction_clipped": "blindstep.insight.clipping",
    "host": "blindstep.drivers",
    "minimize": "blindstep.drivers.compiled",
    "plan": "blindstep.optimize.planner",
    "report": "blindstep.insight.report",
    "tune": "blindstep.drivers.tune",
    "value": "blindstep.drivers.values",
}

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
    "HopelessPlan",
    "HorizonExceeded",
    "InvalidArgument",
    "LargeDelta",
    "LedgerBusy",
    "LedgerDamaged",
    "LedgerError",
    "LedgerMismatch",
    "LedgerTruncated",
    "LedgerUnreadable",
    "LedgerUnwritable",
    "Lipschitz",
    "LossFailed",
    "LossNotFinite",
    "NoEntropy",
    "NoiseReused",
    "Optimizer",
    "Plan",
    "Privacy",
    "ProcessLost",
    "Range",
    "RecordsConsumed",
    "Result",
    "RunsInEvaluationMode",
    "Scales",
    "SecretCopied",
    "Statement",
    "StorageError",
    "Tuned",
    "VacuousPlan",
    "Value",
    "audit",
    "certificate",
    "encode",
    "fraction_clipped",
    "host",
    "minimize",
    "plan",
    "report",
    "tune",
    "value",
]


def __getattr__(name: str) -> Any:
    """The public name, imported from where it lives and kept."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'blindstep' has no attribute {name!r}")
    module = import_module(home)
    found = getattr(module, name, None)
    # `host` is a module itself.
    globals()[name] = import_module(f"{home}.{name}") if found is None else found
    return globals()[name]


def __dir__() -> list[str]:
    """What there is, imported or not."""
    return sorted({*globals(), *_HOMES})
