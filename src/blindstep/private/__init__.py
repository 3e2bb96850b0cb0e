"""The gate: audit this folder and you have audited the privacy. It takes an hour and a quarter to read.

Between a record and the world stands one object, `gate.Gate`. It takes a vector for each record of a
batch and gives back one noisy vector. Its premise is one sentence: *a record's vector depends on that
record and on public values alone*. Everything before it (directions, probing, the loss) and after it
(prefix sums, learners, plans, reports) may be wrong, slow or hostile: that costs accuracy, not privacy.

Read in this order (2,000 lines, 14,300 words): `clip` (a record's vector, at most `clip` long),
`noise` (keys, cipher, sampler), `schedule` (who answers when, publicly or secretly), `mechanisms` (the
factor C, and what it costs), `accounting` (mu, epsilon, delta), `secret_batches` (what secrecy costs),
`terms` (what releases cost, and what is promised), `gate` (vectors in, one noisy vector out).

Trusted outside: Python, JAX, NumPy and SciPy, the operating system's randomness, and the checks of
numbers in `blindstep.errors`. A budget (`ledger.budget`) is a wish, and a ledger is not believed: one
gate's releases cost at most `Terms.mu()`, and a promise says that. But a ledger that forgets lets
several runs on the same people spend more together than anyone is told. And a run that is resumed draws
the noise of a release again: `ledger.session` must hand it the same records, answers and state, or two
releases with one noise give away how these differ.
"""
