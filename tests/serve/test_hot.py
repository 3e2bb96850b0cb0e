"""The routes of people past the framework: whatever is sent, the same answer as from the framework."""

import json
import random

import pytest

from blindstep.serve import hot
from serving import SPEC

TYPES = ["application/json"] * 20 + ["application/json; charset=utf-8", "text/plain", None]
TYPES += ["application/vnd.api+json", "APPLICATION/JSON"]
STUDIES = ["{study}"] * 8 + ["00", "f" * 33, "XY", "{study}%20", "{study}/", "%7B", "é"]
PEOPLE = [
    "anna",
    "ben",
    "carl",
    "dora",
    "",
    "a" * 500,
    "a" * 501,
    7,
    None,
    True,
    ["anna"],
    "\ud800",
    "\x00",
    "ä",
]
VALUES = [
    1,
    0,
    1,
    0,
    1.0,
    "1",
    "0.0",
    True,
    None,
    2,
    -1,
    0.5,
    1e400,
    -0.0,
    "x",
    [1],
    10**400,
    "1_0",
    " 1",
]


def spoiled(body, chance):
    """The body of a request, at times not as it should be."""
    text = json.dumps(body)
    how = chance.randrange(24)
    if how == 0:
        text = json.dumps(body | {"more": 1})
    elif how == 1:
        text = text[: chance.randrange(len(text))]
    elif how == 2:
        text = text.replace("{", '{"person": "ben", "value": 0, ', 1)  # a name twice
    elif how == 3:
        text = json.dumps([body])
    elif how == 4:
        return ("\ufeff" + text).encode("utf-8", "surrogatepass")
    elif how == 5:
        return text.encode("utf-16")
    elif how == 6:
        return chance.randbytes(20)
    elif how == 7:
        text = "[" * 100_000 if chance.random() < 0.1 else "NaN"
    return text.encode()


def some_request(chance, study, tokens, questions):
    """Method, address, headers and body of a request that may be wrong in any part."""
    headers = {}
    if (kind := chance.choice(TYPES)) is not None:
        headers["Content-Type"] = kind
    bearer = chance.choice([f"Bearer {tokens['site']}"] * 6 + [f"bearer  {tokens['admin']}", None])
    bearer = chance.choice(
        [bearer] * 20 + ["", "Bearer", "Basic x", "Bearer x", f"Bearer {tokens['other']}"]
    )
    if bearer is not None:
        headers["Authorization"] = bearer
    at = chance.choice(STUDIES).format(study=study)
    what = chance.randrange(10)
    if what < 4:
        body = {"person": chance.choice(PEOPLE)}
        method = chance.choice(["POST"] * 8 + ["GET", "PUT"])
        return method, f"/v1/studies/{at}/questions", headers, spoiled(body, chance)
    if what < 8:
        token = chance.choice(questions + [None, "", "x", "a" * 101, 7])
        body = {"token": token, "value": chance.choice(VALUES)}
        return (
            "POST",
            chance.choice(["/v1/answers"] * 5 + ["/v1/answers/"]),
            headers,
            spoiled(body, chance),
        )
    headers["If-None-Match"] = chance.choice([f'"{study}-0"', '"x"', "*"])
    return (
        chance.choice(["GET", "GET", "HEAD", "POST"]),
        f"/v1/studies/{at}/parameters",
        headers,
        b"",
    )


def sent(client, request):
    """What comes back: status, headers and body."""
    method, path, headers, body = request
    client.headers.pop("Authorization", None)
    response = client.request(method, path, headers=headers, content=body, follow_redirects=False)
    changing = ("x-request-id", "date")
    kept = {name: value for name, value in response.headers.items() if name not in changing}
    return response.status_code, kept, response.content


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_sent_the_framework_would_say_the_same(client, monkeypatch, seed):
    client.app.state.service.access.patience = 0.0
    admin = client.headers["Authorization"].removeprefix("Bearer ")
    study, elsewhere = (client.post("/v1/studies", json=SPEC).json()["id"] for _ in range(2))
    tokens = {"admin": admin}
    for name, of in (("site", study), ("other", elsewhere)):
        made = client.post("/v1/tokens", json={"scope": "site", "study": of})
        tokens[name] = made.json()["token"]
    asked = [
        client.post(f"/v1/studies/{of}/questions", json={"person": str(n)}).json()["token"]
        for of in (study, elsewhere)
        for n in range(3)
    ]
    if seed % 2:
        for of in (study, elsewhere):
            client.post(f"/v1/studies/{of}/{'pause' if seed == 1 else 'close'}")
    chance, answered = random.Random(seed), []
    for name, route in list(hot._ROUTES.items()):

        async def watched(*given, _route=route):
            answered.append(1)
            return await _route(*given)

        monkeypatch.setitem(hot._ROUTES, name, watched)
    by_hand = 0
    for _ in range(150):
        request = some_request(chance, study, tokens, asked)
        ours = sent(client, request)
        by_hand += len(answered)
        with monkeypatch.context() as without:
            without.setattr(hot, "_found", lambda scope: None)
            answered.clear()
            assert ours == sent(client, request), request
            assert not answered
    assert by_hand > 30


def test_health_is_answered_to_head_too(client):
    for path in ("/healthz", "/readyz"):
        assert client.get(path).status_code == client.head(path).status_code == 200
        assert client.head(path).content == b""
