"""The trusted base: everything between raw loss values and the released gradient.

Read this folder and you have read the whole privacy argument. Nothing outside of it sees a loss
value, a record's contribution or a noise draw; everything outside only post-processes what
`oracle.Oracle.release` hands out. Reading order: `bounds`, `directions`, `estimators`, `prefix`,
`schedule`, `accounting`, `oracle`, `randomness`.
"""
