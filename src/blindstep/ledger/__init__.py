"""What survives a crash: what a run has spent, where it stands, and the secrets it goes on with.

Read in this order: `budget` (what a user asks for), `files` (bytes that are on the disk when a call
returns), `journal`, `account`, `ledger` (all that is spent, charged before it is released),
`fingerprints`, `checkpoint`, `storage` (where a run stands, in one process or in several), `session`
(all of this, as the gate's port), `data_ledger` (the ledger of a data file).
"""
