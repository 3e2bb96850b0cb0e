"""blindstep: differentially private optimization from function values alone.

import blindstep as bs

result = bs.minimize(loss, params, data, privacy=bs.Privacy(epsilon=1, delta=1e-6))
print(result.privacy)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors; at run time the table below does it
    from blindstep.errors import (
        BlindstepError,
        BudgetExceeded,
        CheckpointDamaged,
        CheckpointError,
        CheckpointMismatch,
        CheckpointUnwritable,
        HopelessPlan,
        HorizonExceeded,
        InvalidArgument,
        LargeDelta,
        LedgerBusy,
        LedgerDamaged,
        LedgerError,
        LedgerMismatch,
        LedgerTruncated,
        LedgerUnreadable,
        LedgerUnwritable,
        LossNotFinite,
        NoEntropy,
        NoiseReused,
        ProcessLost,
        RecordsConsumed,
        RunsInEvaluationMode,
        SecretCopied,
        StorageError,
        VacuousPlan,
    )
    from blindstep.estimate.bounds import Bounds, Clip, Lipschitz, Range
    from blindstep.estimate.scales import Scales
    from blindstep.insight.audit import Audit, audit
    from blindstep.insight.certificate import Certificate, certificate
    from blindstep.insight.report import report
    from blindstep.insight.tables import fraction_clipped
    from blindstep.losses.data_frames import encode
    from blindstep.losses.engines import EngineLost
    from blindstep.losses.error_checks import LossFailed
    from blindstep.planning.plan import Plan
    from blindstep.planning.planner import plan
    from blindstep.private.statement import Privacy, Statement
    from blindstep.run import host
    from blindstep.run.ask_tell import Optimizer
    from blindstep.run.compiled import minimize
    from blindstep.run.result import History, Result
    from blindstep.run.tune import Tuned, tune
    from blindstep.run.value import Value, value

__version__ = "0.2.0"

# Where each name lives. It is imported when it is first asked for (PEP 562): JAX takes a second to
# import, and whoever asks for help or catches an error need not wait for it.
_HOMES = {
    "Audit": "blindstep.insight.audit",
    "BlindstepError": "blindstep.errors",
    "Bounds": "blindstep.estimate.bounds",
    "BudgetExceeded": "blindstep.errors",
    "Certificate": "blindstep.insight.certificate",
    "CheckpointDamaged": "blindstep.errors",
    "CheckpointError": "blindstep.errors",
    "CheckpointMismatch": "blindstep.errors",
    "CheckpointUnwritable": "blindstep.errors",
    "Clip": "blindstep.estimate.bounds",
    "EngineLost": "blindstep.losses.engines",
    "History": "blindstep.run.result",
    "HopelessPlan": "blindstep.errors",
    "HorizonExceeded": "blindstep.errors",
    "InvalidArgument": "blindstep.errors",
    "LargeDelta": "blindstep.errors",
    "LedgerBusy": "blindstep.errors",
    "LedgerDamaged": "blindstep.errors",
    "LedgerError": "blindstep.errors",
    "LedgerMismatch": "blindstep.errors",
    "LedgerTruncated": "blindstep.errors",
    "LedgerUnreadable": "blindstep.errors",
    "LedgerUnwritable": "blindstep.errors",
    "Lipschitz": "blindstep.estimate.bounds",
    "LossFailed": "blindstep.losses.error_checks",
    "LossNotFinite": "blindstep.errors",
    "NoEntropy": "blindstep.errors",
    "NoiseReused": "blindstep.errors",
    "Optimizer": "blindstep.run.ask_tell",
    "Plan": "blindstep.planning.plan",
    "Privacy": "blindstep.private.statement",
    "ProcessLost": "blindstep.errors",
    "Range": "blindstep.estimate.bounds",
    "RecordsConsumed": "blindstep.errors",
    "Result": "blindstep.run.result",
    "RunsInEvaluationMode": "blindstep.errors",
    "Scales": "blindstep.estimate.scales",
    "SecretCopied": "blindstep.errors",
    "Statement": "blindstep.private.statement",
    "StorageError": "blindstep.errors",
    "Tuned": "blindstep.run.tune",
    "VacuousPlan": "blindstep.errors",
    "Value": "blindstep.run.value",
    "audit": "blindstep.insight.audit",
    "certificate": "blindstep.insight.certificate",
    "encode": "blindstep.losses.data_frames",
    "fraction_clipped": "blindstep.insight.tables",
    "host": "blindstep.run",
    "minimize": "blindstep.run.compiled",
    "plan": "blindstep.planning.planner",
    "report": "blindstep.insight.report",
    "tune": "blindstep.run.tune",
    "value": "blindstep.run.value",
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
