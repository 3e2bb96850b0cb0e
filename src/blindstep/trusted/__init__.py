"""The trusted base: everything between raw loss values and the released gradient.

Read this folder and you have read the whole privacy argument. Nothing outside of it sees a loss
value, a record's contribution or a noise draw; everything outside only post-processes what
`oracle.Oracle.release` hands out.

Reading order. The mechanism: `bounds`, `directions`, `frames`, `estimators`, `increments`, `prefix`,
`toeplitz`, `blt`, `schedule`, `accounting`, `oracle`, `randomness`, `privacy`. What is kept on disk:
`refusals`, `sealed_json`, `durable`, `journal`, `account`, `ledger`, `checkpoint`.
"""
