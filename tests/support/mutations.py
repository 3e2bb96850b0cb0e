"""Ways to spoil a file: bytes that no writer wrote, and values that no field should have."""

import json
import random

# What a JSON value may be replaced by: every wrong type, and numbers that readers stumble over.
STRANGE = [None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, 5e-324, 2**63, -(2**64), 10**400, 3.0]
STRANGE += ["", "0", "nan", "\ud800", "x" * 5000, "[/red]", "[bold]", "../../etc/passwd", "\0"]
STRANGE += [[], {}, [1], [[1]], [[0, 0.5]], [["a", "b"]], {"a": 1}, [None], [[None, None]]]
# What cannot be written as a Python value, and takes the place of one in the text.
LITERALS = [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 5000, b"[" * 5000, b"00", b"+1"]
LITERALS += [b'{"a":1,"a":2}', b'"\xff\xfe"', b"tru", b'"\\ud800"', b"0x10", b"{", b"'a'"]


def spoil_bytes(rng: random.Random, content: bytes, other: bytes) -> bytes:
    """Flip, cut, insert, delete, double, swap, overwrite, splice with another file, re-encode."""
    size = len(content)
    a, b = sorted(rng.randrange(size + 1) for _ in range(2))
    lines = content.splitlines(keepends=True)
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(12)
    if kind <= 1:
        changed = bytearray(content)
        for _ in range(rng.choice([1, 1, 2, 9])):
            changed[rng.randrange(size)] ^= 1 << rng.randrange(8)
        return bytes(changed)
    if kind == 2:
        return content[:a]
    if kind == 3:
        return content[a:]
    if kind == 4:
        return content[:a] + rng.randbytes(rng.choice([1, 2, 64])) + content[a:]
    if kind == 5:
        return content[:a] + content[b:]
    if kind == 6:
        return content[:b] + content[a:]
    if kind == 7:
        lines[i], lines[j] = lines[j], lines[i]
        return b"".join(lines)
    if kind == 8:
        return b"".join(lines[:i] + lines[i + 1 :])
    if kind == 9:
        return content[:a] + rng.choice(LITERALS) + content[min(size, a + rng.randrange(8)) :]
    if kind == 10:
        return content[:a] + other[min(a, len(other)) :]
    wide = content.decode("latin-1").encode("utf-16")
    whole = [b"", b"\n", b"\0" * size, rng.randbytes(size), content * 2, wide]
    return rng.choice([*whole, b"\xef\xbb\xbf" + content, content.replace(b"\n", b"\r\n")])


def spoil_value(rng: random.Random, value: object) -> object:
    """Replace, drop, add or double one thing somewhere inside a JSON value."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(sorted(value))
        kind = rng.randrange(8)
        if kind == 0:
            return {k: v for k, v in value.items() if k != name}
        if kind == 1:
            return {**value, rng.choice(["extra", "", "schema", "n", "kind"]): rng.choice(STRANGE)}
        if kind == 2:
            return {("renamed" if k == name else k): v for k, v in value.items()}
        return {**value, name: spoil_value(rng, value[name])}
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        return (
            value[:place] + rng.choice([[], [spoil_value(rng, value[place])]]) + value[place + 1 :]
        )
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.5:
        return rng.choice([-value, value + 1, value * 2, value / 3, value * 10**30, str(value)])
    return rng.choice(STRANGE)


def spoil_text(rng: random.Random, value: dict[str, object]) -> bytes:
    """A JSON object with one value spoiled, or with a literal or a doubled name that JSON forbids."""
    if rng.random() < 0.7:
        return json.dumps(spoil_value(rng, value)).encode()
    name = rng.choice(sorted(value))
    text = json.dumps({**value, name: "HERE"}).encode()
    if rng.random() < 0.8:
        return text.replace(b'"HERE"', rng.choice(LITERALS))
    return text[:-1] + b"," + json.dumps({name: value[name]}).encode()[1:]
