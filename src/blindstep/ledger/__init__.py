"""What survives a crash: what a run has spent, where it stands, and the secrets it goes on with.

Read in this order: `refusals`, `durable`, `sealed_json`, `journal`, `account`, `names`, `ledger` (all
that is spent, charged before it is released); `checkpoint`, `packing`, `fingerprints`, `plan_file`,
`storage` (where a run stands); `session` (both together, as the gate's port).
"""
