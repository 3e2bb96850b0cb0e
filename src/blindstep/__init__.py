"""blindstep: differentially private optimization from function values alone.

import blindstep as bs

result = bs.minimize(loss, params, data, bs.Privacy(epsilon=1, delta=1e-6))
print(result.privacy)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see; a test holds it against the table below
    from blindstep import errors as errors
    from blindstep.estimate.bounds import Bounds as Bounds
    from blindstep.insight.audit import audit as audit
    from blindstep.insight.certificate import certificate as certificate
    from blindstep.insight.hand_over import hand_over as hand_over
    from blindstep.insight.membership import Canaries as Canaries
    from blindstep.insight.report import report as report
    from blindstep.ledger.budget import Privacy as Privacy
    from blindstep.losses.data_frames import encode as encode
    from blindstep.losses.engines import Host as Host
    from blindstep.losses.people import People as People
    from blindstep.planning.auto import Auto as Auto
    from blindstep.planning.paper import Klt as Klt
    from blindstep.planning.paper import Paper as Paper
    from blindstep.planning.plan import Plan as Plan
    from blindstep.planning.planner import plan as plan
    from blindstep.planning.questions import Questions as Questions
    from blindstep.planning.tight import Tight as Tight
    from blindstep.run import callbacks as callbacks
    from blindstep.run.ask_tell import Optimizer as Optimizer
    from blindstep.run.minimize import minimize as minimize
    from blindstep.run.result import Result as Result
    from blindstep.run.tune import tune as tune
    from blindstep.run.value import value as value

__version__ = "0.3.0"

# Where each name lives. It is imported when it is first asked for (PEP 562): JAX takes a second to
# import, and nobody who asks for help or catches an error need wait for it.
_HOMES = {
    "Auto": "planning.auto",
    "Bounds": "estimate.bounds",
    "Canaries": "insight.membership",
    "Host": "losses.engines",
    "Klt": "planning.paper",
    "Optimizer": "run.ask_tell",
    "Paper": "planning.paper",
    "People": "losses.people",
    "Plan": "planning.plan",
    "Privacy": "ledger.budget",
    "Questions": "planning.questions",
    "Result": "run.result",
    "Tight": "planning.tight",
    "audit": "insight.audit",
    "callbacks": "run.callbacks",
    "certificate": "insight.certificate",
    "encode": "losses.data_frames",
    "errors": "errors",
    "hand_over": "insight.hand_over",
    "minimize": "run.minimize",
    "plan": "planning.planner",
    "report": "insight.report",
    "tune": "run.tune",
    "value": "run.value",
}
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """The public name, imported from where it lives and kept."""
    if name not in _HOMES:
        raise AttributeError(f"module 'blindstep' has no attribute {name!r}")
    module = import_module(f"blindstep.{_HOMES[name]}")
    globals()[name] = getattr(module, name, module)  # `errors` is a module itself
    return globals()[name]


def __dir__() -> list[str]:
    """What there is, imported or not."""
    return sorted({*globals(), *_HOMES})
