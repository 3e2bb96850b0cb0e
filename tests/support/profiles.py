"""Privacy profiles of a cost of (mu, secrecy): what the tests of its accountant share."""

from blindstep.private import accounting

# With the record against without it, and the other way round.
KINDS = ("with", "without")


def profile(mu, slack, epsilon):
    """The largest delta at epsilon that a cost of (mu, slack) allows."""
    return slack + (1 - slack) * accounting.delta(mu, epsilon)


def needed(epsilon, profile, slack):
    """The mu for which slack + (1 - slack) delta_mu(epsilon) is just this profile."""
    left = (profile - slack) / (1 - slack)
    return accounting.mu_for_epsilon(epsilon, left) if left > 1e-30 else 0.0
