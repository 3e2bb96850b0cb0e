"""Any pytree of parameters as one flat vector, any pytree of records as rows: checked before use.

Data that the user has sharded over a mesh of devices stays where it is: each device evaluates its share
of a batch, and the gate adds up the shares exactly. So the result is that of one device, up to rounding
in the loss itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree

from blindstep.errors import InvalidArgument

# From parameters and one record to one number; a key may be third (`losses.streams`).
Loss = Callable[..., Any]


class UntraceableLoss(InvalidArgument):
    """JAX cannot trace the loss: it is written for plain Python."""


@dataclass(frozen=True)
class ParameterSpace:
    """How parameters of any shape map to a flat float64 vector and back.

    Hashable and equal for equal structures, so that a compiled program can be reused.
    """

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]

    @classmethod
    def of(cls, params: PyTree) -> ParameterSpace:
        """The space that `params` lives in; every leaf must be a finite floating-point array."""
        leaves, structure = jax.tree.flatten(params)
        if not leaves:
            raise InvalidArgument("params has no leaf: give at least one floating-point array.")
        arrays = []
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            where = "params" + jax.tree_util.keystr(path)
            array = _array(leaf)
            if not jnp.issubdtype(array.dtype, jnp.floating):
                raise InvalidArgument(
                    f"{where} has dtype {array.dtype}: parameters move in small steps, so they "
                    "must be floating-point. Convert it, for example with jnp.asarray(x, float)."
                )
            if not bool(np.all(np.isfinite(np.asarray(array, dtype=np.float64)))):
                raise InvalidArgument(f"{where} is not finite: start from finite parameters.")
            arrays.append(array)
        if sum(array.size for array in arrays) == 0:
            raise InvalidArgument("params is empty: give at least one number to optimize.")
        return cls(
            structure=structure,
            shapes=tuple(tuple(array.shape) for array in arrays),
            dtypes=tuple(np.dtype(array.dtype) for array in arrays),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers each leaf has, of those that have any."""
        return tuple(size for size in map(math.prod, self.shapes) if size)

    @property
    def dim(self) -> int:
        """The number of parameters."""
        return sum(math.prod(shape) for shape in self.shapes)

    def flatten(self, params: PyTree) -> Float[Array, " dim"]:
        """The flat float64 vector of `params`, whatever width of floats JAX is set to."""
        with jax.enable_x64(True):
            flat = (jnp.ravel(jnp.asarray(leaf)) for leaf in jax.tree.leaves(params))
            return jnp.concatenate([part.astype(jnp.float64) for part in flat])

    def unflatten(self, vector: Float[Any, "*rows dim"]) -> PyTree:
        """Parameters of the original structure, shapes and dtypes; of rows, with rows in front."""
        leaves, start = [], 0
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            part = vector[..., start : start + math.prod(shape)]
            leaves.append(part.reshape((*vector.shape[:-1], *shape)).astype(dtype))
            start += math.prod(shape)
        return jax.tree.unflatten(self.structure, leaves)


def on_disk(data: PyTree) -> bool:
    """Whether records are read from a file, some at a time."""
    return any(isinstance(leaf, np.memmap) for leaf in jax.tree.leaves(data))


def rounding(params: PyTree) -> float:
    """The norm of what rounding to their own dtypes can do to parameters; 0 for none."""
    squares = 0.0
    for array in map(_array, jax.tree.leaves(params)):
        size = float(np.sum(np.asarray(array, np.float64) ** 2))
        squares += float(jnp.finfo(array.dtype).eps) ** 2 * size
    return math.sqrt(squares)


def _array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)


def count_records(data: PyTree) -> int:
    """The common leading axis of `data`: the number of records. Says which leaves disagree."""
    leaves = jax.tree_util.tree_leaves_with_path(data)
    if not leaves:
        raise InvalidArgument("data has no leaf: give arrays with one row for each record.")
    lengths = {}
    for path, leaf in leaves:
        name = "data" + jax.tree_util.keystr(path)
        if not isinstance(leaf, np.ndarray | jax.Array):
            kind = type(leaf).__name__
            remedy = "{name: frame[name].to_numpy() for name in frame}"
            hint = remedy if hasattr(leaf, "columns") else "np.asarray(...), one row a record"
            raise InvalidArgument(f"{name} is a {kind}, not an array: give {hint}.")
        if leaf.ndim == 0:
            raise InvalidArgument(
                f"{name} is a scalar: each leaf needs a leading axis with one row for each record."
            )
        lengths[name] = leaf.shape[0]
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise InvalidArgument(
            f"leading axes disagree ({listed}): row i of every leaf belongs to record i."
        )
    number = next(iter(lengths.values()))
    if number == 0:
        raise InvalidArgument("the data set is empty: give at least one record.")
    return number


def shapes_of(params: PyTree, data: PyTree) -> tuple[PyTree, PyTree]:
    """The shapes and dtypes of parameters and of one record, to trace a loss on."""
    record = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), data)
    struct = jax.ShapeDtypeStruct
    return jax.tree.map(lambda leaf: struct(np.shape(leaf), np.asarray(leaf).dtype), params), record


def described(tree: PyTree, *, of_records: bool = False) -> str:
    """What a pytree is made of: `{age: float64[], name: text}`; with `of_records` one of its records.

    How long texts are stays out.
    """

    def shape(leaf: Any) -> str:
        found = np.asarray(leaf) if not hasattr(leaf, "dtype") else leaf
        name = {"U": "text", "S": "bytes", "O": "objects"}.get(found.dtype.kind, str(found.dtype))
        return f"{name}{list(found.shape[1 if of_records else 0 :])}"

    return str(jax.tree.map(shape, tree)).replace("'", "")


# Characters of a loss's own error that are repeated.
_MOST_WORDS = 400


def check_loss(loss: Loss, params: PyTree, data: PyTree) -> None:
    """Trace the loss on shapes alone; it must give one real number for each record, and only that.

    A loss with effects (`jax.debug.print`, `io_callback`, an unhandled `checkify.check`) would say
    something about a record past the gate, so it is refused; and so is one in which a record could
    reach the others of its batch (`refuse_mixing`).
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        if leaf.dtype.kind in "OSUMm":  # objects, text, dates
            raise InvalidArgument(
                f"data{jax.tree_util.keystr(path)} has dtype {leaf.dtype}: a loss computes with "
                "numbers. Turn categories into features (blindstep.encode, with a public list), "
                "text into codes (0, 1, 2, ...) and dates into days, or leave this part out."
            )
    try:
        traced, out = jax.make_jaxpr(loss, return_shape=True)(*shapes_of(params, data))
    except (
        jax.errors.ConcretizationTypeError,
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
    ) as error:
        raise UntraceableLoss(
            "JAX cannot trace the loss. Write it with jax.numpy, with jnp.where in place of `if`, and "
            "without float(), int() or numpy; a loss that must run as plain Python needs "
            "evaluate=blindstep.Host()."
        ) from error
    except (InvalidArgument, jax.errors.JAXTypeError):
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        plain = isinstance(params, list) and all(isinstance(each, int | float) for each in params)
        hint = " A list of numbers is no array: give np.array(params)." if plain else ""
        raise InvalidArgument(
            f"the loss raises {type(error).__name__}: {text[:_MOST_WORDS].rstrip('.')}. It is called "
            f"with params, which are {described(params)}, and with one record at a time, which is "
            f"{described(data, of_records=True)}.{hint}"
        ) from error
    if traced.effects:
        raise InvalidArgument(
            "the loss prints, calls back or checks while the program runs (jax.debug.print, "
            "io_callback, checkify.check), and what it says of a record would pass by the noise: take "
            "that out, and try the loss on made-up records instead. equinox.error_if may stay."
        )
    refuse_mixing(traced)
    leaves = jax.tree.leaves(out)
    if len(leaves) != 1 or leaves[0].shape != ():
        shapes = ", ".join(str(leaf.shape) for leaf in leaves) or "nothing"
        raise InvalidArgument(
            f"the loss returned {shapes}, but it must return one number for one record: "
            "sum or average inside the loss."
        )
    if jnp.issubdtype(leaves[0].dtype, jnp.complexfloating):
        raise InvalidArgument(
            f"the loss returned dtype {leaves[0].dtype}: it must return a real number."
        )


def refuse_mixing(traced: Any) -> None:
    """Raise if a traced loss has a rule of its own for batches: there one record could speak for all.

    Guarantee: no `custom_vmap`, no callback or foreign function that gets a batch as a whole, and no
    random bits of XLA's own generator, which makes those of a batch from its first key alone. What is
    left are JAX's operations, which `vmap` applies to each record by itself, and calls one by one.
    """
    for equation in _equations(traced):
        name, whole = equation.primitive.name, equation.params.get("vmap_method", "sequential")
        keys = any("rbg>" in str(each.aval) for each in equation.invars)
        if name == "custom_vmap_call":
            found = "a rule for batches (jax.custom_batching)"
        elif whole not in (None, "sequential", "sequential_unrolled"):
            found = f"a call with vmap_method={whole!r}"
        elif name == "rng_bit_generator" or keys:
            found = "random numbers of an rbg key, which a batch draws from its first record's"
        else:
            continue
        raise InvalidArgument(
            f"the loss has {found}: there one record could decide what all others count. Use "
            "jax.numpy, vmap_method='sequential', keys of the default kind (threefry2x32), or "
            "evaluate=blindstep.Host()."
        )


def _equations(traced: Any) -> Iterator[Any]:
    """Every operation of a traced function and of the functions that it calls."""
    if isinstance(traced, jax.extend.core.ClosedJaxpr):
        traced = traced.jaxpr
    if isinstance(traced, jax.extend.core.Jaxpr):
        for equation in traced.eqns:
            yield equation
            yield from _equations(list(equation.params.values()))
    elif isinstance(traced, (list, tuple)):
        for each in traced:
            yield from _equations(each)


def place(data: PyTree) -> PyTree:
    """Every leaf as a JAX array; one that is sharded stays on the devices it is on.

    In a mesh with explicit axes every gather of rows would have to say where its result lives. The
    compiler can tell: the same devices, with automatic axes.
    """

    def put(leaf: Any) -> Array:
        array = jnp.asarray(leaf)
        sharding = array.sharding
        if isinstance(sharding, NamedSharding) and set(sharding.mesh.axis_types) != {AxisType.Auto}:
            mesh = Mesh(np.asarray(sharding.mesh.devices), sharding.mesh.axis_names)
            array = jax.device_put(array, NamedSharding(mesh, sharding.spec))
        return array

    return jax.tree.map(put, data)


def over_records(data: PyTree) -> NamedSharding | None:
    """How the records of `data` are spread over devices; None if they are not."""
    for leaf in jax.tree.leaves(data):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.spec and sharding.spec[0] is not None:
            return NamedSharding(sharding.mesh, PartitionSpec(sharding.spec[0]))
    return None


def everywhere(tree: PyTree, sharding: NamedSharding) -> PyTree:
    """Arrays inside a program, whole on every device of the mesh: any process can read them."""
    whole = NamedSharding(sharding.mesh, PartitionSpec())
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, whole), tree)


def put_everywhere(tree: PyTree, sharding: NamedSharding) -> PyTree:
    """Arrays of this host as `everywhere` leaves them: a program takes both, compiled once."""
    whole = NamedSharding(sharding.mesh, PartitionSpec())

    def put(leaf: Array) -> Array:
        if leaf.sharding.device_set == whole.device_set:
            return leaf
        content = np.asarray(leaf)
        return jax.make_array_from_callback(leaf.shape, whole, lambda index: content[index])

    return jax.tree.map(put, tree)


def spread(evaluate: Callable[..., Array], sharding: NamedSharding) -> Callable[..., Array]:
    """`evaluate`, such that a batch of calls (`jax.vmap`) is spread over devices like the records.

    Only when the calls for one record each are batched is there an axis to spread.
    """

    @custom_vmap
    def together(points: Array, record: PyTree) -> tuple[Array, PyTree]:
        return points, record

    def constrain(value: Array, has: bool) -> Array:
        return jax.lax.with_sharding_constraint(value, sharding) if has else value

    @together.def_vmap
    def _(size: int, batched: list[Any], points: Array, record: PyTree) -> tuple[Any, Any]:
        return jax.tree.map(constrain, (points, record), tuple(batched)), tuple(batched)

    return lambda points, record: evaluate(*together(points, record))
