"""The gate: audit this folder and you have audited the privacy.

Between a record and the world stands one object, `gate.Gate`. It takes a vector for each record of a
batch and gives back one noisy vector. Its premise is one sentence: *a record's vector depends on
that record and on public values alone*. Everything before it (directions, probing, the loss) and
after it (prefix sums, learners, plans, reports) can be wrong, slow or hostile; that costs accuracy,
never privacy.

Read in this order: `clip` (a record's vector, at most `clip` long), `schedule` (who answers when),
`mechanisms` (the factor C), `noise` (the secret key and the lattice Gaussian), `terms` (what releases
cost), `gate` (vectors in, one noisy vector out, charged before it is released), `accounting` (mu,
epsilon, delta), `statement` (what is promised, in words and numbers). `tables/` holds the cipher, the
sampler and the tables of numbers behind them.
"""
