"""The demonstration: two stories on embedded, public data, each a real private run.

*Votes*: a recommender tuned from two votes of each of 200,000 simulated users (`votes`).
*Digits*: a ReLU network trained from loss values alone on 1,437 handwritten digits (`digits`).

Users are simulated and digits are published, so scores may be shown. Noise is from the operating
system, as in any real run: figures differ a little from one demonstration to the next.
"""

from . import digits, votes

__all__ = ["digits", "votes"]
