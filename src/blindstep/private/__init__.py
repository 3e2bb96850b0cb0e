"""The gate: audit this folder and you have audited the privacy. It takes an hour and a half to read.

Between a record and the world stands one object, `gate.Gate`. It takes a vector for each record of a
batch and gives back one noisy vector. Its premise is one sentence: *a record's vector depends on that
record and on public values alone*. Everything before it (directions, probing, the loss) and after it
(prefix sums, learners, plans, reports) may be wrong, slow or hostile: that costs accuracy, not privacy.

Read in this order (2,600 lines, 17,400 words): `clip` (a record's vector, at most `clip` long),
`schedule` (who answers when, publicly or secretly), `secret_batches` (what the latter costs),
`mechanisms` (the factor C; its numbers are in `blt_table`), `columns` (what C costs), `noise` (keys),
`lattice` (cipher and sampler), `terms` (what releases cost), `gate` (vectors in, one noisy vector out,
charged first), `accounting` (mu, epsilon, delta), `statement` (the promise, in words and numbers).

Trusted outside: Python, JAX, NumPy and SciPy, the operating system's randomness, and the checks of
numbers in `blindstep.errors`. A ledger is not: whatever it answers, one gate's releases cost at most
`Terms.mu()`. But a ledger that forgets lets several runs on the same people spend more together than
anyone is told. And a run that is resumed draws the noise of a release again: `ledger.session` must hand
it the same records, answers and state, or two releases with one noise give away how these differ.
"""
