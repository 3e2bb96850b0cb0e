"""blindstep: differentially private optimization from function values alone.

import blindstep as bs

result = bs.minimize(loss, params, data, privacy=bs.Privacy(epsilon=4, delta=1e-5),
                     radius=0.1, lipschitz=1.0, horizon=16)
print(result.privacy)
"""

from blindstep.drivers import host
from blindstep.drivers.compiled import minimize
from blindstep.drivers.optimizer import Optimizer
from blindstep.drivers.result import History, Result
from blindstep.errors import (
    BlindstepError,
    HorizonExceeded,
    InvalidArgument,
    NoEntropy,
    VacuousPlan,
)
from blindstep.insight.audit import Audit, audit
from blindstep.insight.certificate import Certificate, certificate
from blindstep.insight.clipping import fraction_clipped
from blindstep.optimize.plan import Plan
from blindstep.optimize.planner import plan
from blindstep.trusted.bounds import Bounds, Clip, Lipschitz, Range
from blindstep.trusted.privacy import Privacy, Statement
from blindstep.trusted.refusals import BudgetExceeded, StorageError

__version__ = "0.1.0"

__all__ = [
    "Audit",
    "BlindstepError",
    "Bounds",
    "BudgetExceeded",
    "Certificate",
    "Clip",
    "History",
    "HorizonExceeded",
    "InvalidArgument",
    "Lipschitz",
    "NoEntropy",
    "Optimizer",
    "Plan",
    "Privacy",
    "Range",
    "Result",
    "Statement",
    "StorageError",
    "VacuousPlan",
    "audit",
    "certificate",
    "fraction_clipped",
    "host",
    "minimize",
    "plan",
]
