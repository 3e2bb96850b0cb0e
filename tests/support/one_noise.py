"""One seed, one noise: so that tests can compare runs about different things under the same noise.

Under a user's seed noise hangs on data, start, loss and plan too (`noise.fresh_keys`), so that nobody
can subtract it. To see what else differs between two runs or two drivers, tests must be able to: in all
of them, and in the processes that they start, it hangs on the seed alone. `test_seeds.py` is the
exception.
"""

from blindstep.ledger import session
from blindstep.private.noise import fresh_keys


def seed_alone(seed=None, about=""):
    """The keys of a seed, whatever a run is about."""
    return fresh_keys(seed)


def everywhere():
    """From now on, in this process."""
    session.fresh_keys = seed_alone
