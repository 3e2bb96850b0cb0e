"""What a traced program decides by looking at some of its inputs: branches, loops, callbacks.

Values may depend on records; *which operations run* may not. This follows every value that depends on
the marked inputs through the program and names each place where it would steer it.
"""

import jax.extend.core as core

_Literal = core.Literal


def decisions(closed, marked):
    """Places of a closed jaxpr where a branch or a loop's length hangs on a marked input.

    `marked` has a truth value for each input, in their flat order.
    """
    found = []
    _follow(closed.jaxpr, list(marked), found)
    return found


def _follow(jaxpr, marked, found):
    """Which outputs depend on the marked inputs; what they decide is added to `found`."""
    dirty = {v for v, mark in zip(jaxpr.invars, marked, strict=True) if mark}

    def is_dirty(atom):
        return not isinstance(atom, _Literal) and atom in dirty

    for equation in jaxpr.eqns:
        inputs = [is_dirty(atom) for atom in equation.invars]
        outputs = _outputs(equation, inputs, found)
        dirty |= {v for v, mark in zip(equation.outvars, outputs, strict=True) if mark}
    return [is_dirty(atom) for atom in jaxpr.outvars]


def _outputs(equation, inputs, found):
    name, params = equation.primitive.name, equation.params
    if name == "cond":
        if inputs[0]:
            found.append("cond")
        outcomes = [_follow(b.jaxpr, inputs[1:], found) for b in params["branches"]]
        return [inputs[0] or any(each) for each in zip(*outcomes, strict=True)]
    if name == "while":
        return _while(params, inputs, found)
    if name == "scan":
        return _scan(params, inputs, found)
    inner = [value for value in params.values() if isinstance(value, core.ClosedJaxpr | core.Jaxpr)]
    if not inner:
        return [any(inputs)] * len(equation.outvars)
    (body,) = inner
    return _follow(getattr(body, "jaxpr", body), inputs, found)


def _while(params, inputs, found):
    of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
    consts, state = inputs[of_cond : of_cond + of_body], inputs[of_cond + of_body :]
    state = _until_stable(
        lambda state: _follow(params["body_jaxpr"].jaxpr, consts + state, []), state
    )
    _follow(params["body_jaxpr"].jaxpr, consts + state, found)
    if any(_follow(params["cond_jaxpr"].jaxpr, inputs[:of_cond] + state, found)):
        found.append("while")
        return [True] * len(state)  # how often it went round shows in all of them
    return state


def _scan(params, inputs, found):
    if "ft_in" in params:  # from JAX 0.11 on
        consts, number, _ = (len(list(part.vals)) for part in params["ft_in"].unpack())
    else:
        consts, number = params["num_consts"], params["num_carry"]
    body, carried = params["jaxpr"].jaxpr, consts + number

    def turn(state):
        return _follow(body, inputs[:consts] + state + inputs[carried:], [])[:number]

    state = _until_stable(turn, inputs[consts:carried])
    return _follow(body, inputs[:consts] + state + inputs[carried:], found)


def _until_stable(turn, state):
    while True:
        after = [old or new for old, new in zip(state, turn(state), strict=True)]
        if after == state:
            return state
        state = after
