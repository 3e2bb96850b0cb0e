"""Signing in through a provider of identities, which runs here on loopback, and at times lies."""

import base64
import dataclasses
import hmac
import json
import sys
import time
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from fastapi.testclient import TestClient

from blindstep.errors import InvalidArgument
from blindstep.serve import identity
from blindstep.serve.app import create_app
from blindstep.serve.identity import RETURN, roles_of
from identity_provider import CLIENT, SECRET, identity_provider, new_key
from serving import SECRETS, SPEC, fresh_settings

ANNA = {"sub": "0815", "email": "anna@example.org", "roles": ["blindstep-admin", "cook"]}


@pytest.fixture
def provider():
    with identity_provider() as running:
        running.claims = dict(ANNA)
        yield running


@pytest.fixture
def settings(tmp_path, provider):
    (tmp_path / "secret").write_text(SECRET + "\n")
    return dataclasses.replace(
        fresh_settings(tmp_path),
        oidc_issuer=provider.issuer,
        oidc_client=CLIENT,
        oidc_secret_file=str(tmp_path / "secret"),
        address="http://127.0.0.1:8000",
    )


@pytest.fixture
def browser(settings):
    """A browser at the service, which follows no redirect by itself."""
    with TestClient(create_app(settings), base_url=settings.address, follow_redirects=False) as b:
        yield b


def at_the_provider(browser):
    """Begin a sign-in, and sign in at the provider; gives the way back."""
    begun = browser.get("/login/provider")
    assert begun.status_code == 303
    return httpx2.get(begun.headers["location"]).headers["location"]


def sign_in(browser):
    """The last response of a whole sign-in."""
    return browser.get(at_the_provider(browser))


def test_an_admin_signs_in_works_and_is_in_the_log_by_name(browser, provider, caplog):
    assert "Sign in with your organisation" in browser.get("/login").text
    done = sign_in(browser)
    assert done.status_code == 200
    assert "anna@example.org" in done.text
    assert 'http-equiv="refresh"' in done.text
    cookies = done.headers.get_list("set-cookie")
    session = next(each for each in cookies if each.startswith("blindstep_session"))
    assert "HttpOnly" in session
    assert "samesite=strict" in session.lower()
    assert browser.get("/").status_code == 200
    form = {"name": "colours", "parameters": "red -1 1", "people": "96", "epsilon": "1"}
    made = browser.post("/new", data=form | {"despite_noise": "on"})
    assert made.status_code == 303
    page = browser.get("/audit").text
    assert page.count("anna@example.org") == 2  # the sign-in, and the new study
    assert provider.refused == []
    assert SECRET not in caplog.text
    # A provider that only checks passwords does not hold up who is in.
    provider.away = True
    assert browser.get(made.headers["location"]).status_code == 200
    cookie = browser.cookies["blindstep_session"]
    assert browser.post("/logout").status_code == 303
    browser.cookies.set("blindstep_session", cookie)
    assert browser.get("/").headers["location"] == "/login"


def test_a_viewer_looks_and_changes_nothing(browser, provider):
    provider.claims["roles"] = "blindstep-viewer"
    assert sign_in(browser).status_code == 200
    assert browser.get("/").status_code == 200
    assert browser.get("/audit").status_code == 200
    assert browser.post("/new", data={"name": "x"}).status_code == 403


def test_a_session_is_no_api_token(browser):
    sign_in(browser)
    cookie = browser.cookies["blindstep_session"]
    bearer = {"Authorization": f"Bearer {cookie}"}
    assert browser.get("/v1/studies", headers=bearer).status_code == 401
    assert browser.post("/v1/studies", json=SPEC).status_code == 401


def test_the_same_person_has_the_same_name_and_nobody_elses(browser, provider):
    names = set()
    for sub, email in (("1", "a@x"), ("1", "b@x"), ("2", "a@x")):
        provider.claims |= {"sub": sub, "email": email}
        sign_in(browser)
        sessions = browser.app.state.service.sessions
        names.add(sessions.holder(browser.cookies["blindstep_session"]).id)
    assert len(names) == 2
    assert {len(name) for name in names} == {16}


@pytest.mark.parametrize("roles", [[], ["cook"], None, 7, {"blindstep-admin": True}])
def test_whoever_has_no_role_here_does_not_come_in(browser, provider, roles):
    provider.claims["roles"] = roles
    refused = sign_in(browser)
    assert refused.status_code == 403
    assert "no role here" in refused.text
    assert browser.get("/").headers["location"] == "/login"


def altered(**more):
    return lambda claims: {
        name: value for name, value in (claims | more).items() if value is not ...
    }


def coded(content):
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def unsigned(claims):
    return f"{coded(json.dumps({'alg': 'none'}).encode())}.{coded(json.dumps(claims).encode())}."


def by_the_public_key(provider):
    """Signed with HMAC under what everybody can read: the oldest trick."""

    def sign(claims):
        head = {"alg": "HS256", "kid": provider.key.kid}
        said = ".".join(coded(json.dumps(each).encode()) for each in (head, claims))
        public = provider.key.as_pem(private=False)
        return f"{said}.{coded(hmac.digest(public, said.encode(), 'sha256'))}"

    return sign


LIES = {
    "of another provider": ("claim", altered(iss="https://elsewhere.example")),
    "for another client": ("claim", altered(aud="somebody else")),
    "for another client, given to us": ("claim", altered(aud="somebody else", azp=CLIENT)),
    "of another sign-in": ("claim", altered(nonce="another")),
    "of no sign-in": ("claim", altered(nonce=...)),
    "over": ("claim", lambda claims: claims | {"exp": int(time.time()) - 300}),
    "of nobody": ("claim", altered(sub=...)),
    "without an end": ("claim", altered(exp=...)),
    "not signed": ("sign", unsigned),
    "not a token": ("sign", lambda claims: "nonsense"),
    "of a key that is not published": ("published", [new_key()]),
}


@pytest.mark.parametrize("lie", [*LIES, "signed by the public key"])
def test_a_lie_about_somebody_is_not_believed(browser, provider, lie, caplog):
    if lie in LIES:
        name, spoiled = LIES[lie]
    else:
        name, spoiled = "sign", by_the_public_key(provider)
    setattr(provider, name, spoiled)
    refused = sign_in(browser)
    assert refused.status_code == 401
    assert "not valid here" in refused.text
    assert "blindstep_session" not in browser.cookies
    assert browser.get("/").headers["location"] == "/login"
    assert "0815" not in caplog.text + refused.text
    assert "anna" not in caplog.text + refused.text


def test_a_way_back_that_was_not_begun_in_this_browser_is_refused(browser, settings, provider):
    """A stranger who sends somebody their own way back would sign them in as the stranger."""
    theirs = at_the_provider(browser)
    browser.cookies.clear()
    refused = browser.get(theirs)
    assert refused.status_code == 401
    assert "not begun in this browser" in refused.text
    at_the_provider(browser)  # one's own is under way
    assert browser.get(theirs).status_code == 401
    assert "/token" not in provider.asked  # refused before anybody was asked
    back = at_the_provider(browser)
    forged = browser.cookies["blindstep_sign_in"]
    browser.cookies.clear()
    browser.cookies.set("blindstep_sign_in", forged[:-1] + ("0" if forged[-1] != "0" else "1"))
    assert browser.get(back).status_code == 401


def test_a_code_counts_once_and_for_ten_minutes(browser, provider, monkeypatch):
    back = at_the_provider(browser)
    kept = browser.cookies["blindstep_sign_in"]
    assert browser.get(back).status_code == 200
    browser.cookies.clear()
    browser.cookies.set("blindstep_sign_in", kept)
    assert browser.get(back).status_code == 401
    assert provider.refused[0] == "code"
    late = at_the_provider(browser)
    now = time.time()
    monkeypatch.setattr(identity.time, "time", lambda: now + 601)
    assert "took too long" in browser.get(late).text


def test_another_provider_in_the_way_back_and_a_refusal_are_seen(browser):
    back = urlsplit(at_the_provider(browser))
    query = {name: values[0] for name, values in parse_qs(back.query).items()}
    said = browser.get(RETURN, params=query | {"iss": "https://elsewhere.example"})
    assert said.status_code == 401
    at = urlsplit(browser.get("/login/provider").headers["location"])
    state = parse_qs(at.query)["state"][0]
    said = browser.get(RETURN, params={"error": "access_denied<b>", "state": state})
    assert said.status_code == 401
    assert "has not signed you in" in said.text
    assert "access_denied" not in said.text


def test_new_keys_of_the_provider_are_found_and_not_looked_for_all_the_time(
    browser, provider, monkeypatch
):
    assert sign_in(browser).status_code == 200
    assert sign_in(browser).status_code == 200
    assert provider.asked.count("/keys") == 1
    provider.key, provider.algorithm = new_key("ES256"), "ES256"
    assert sign_in(browser).status_code == 401  # it was asked for them seconds ago
    assert provider.asked.count("/keys") == 1
    monkeypatch.setattr(identity, "_AGAIN", 0.0)
    assert sign_in(browser).status_code == 200
    assert provider.asked.count("/keys") == 2


def test_a_provider_that_is_away_is_not_asked_by_everybody(browser, provider, monkeypatch):
    provider.away = True
    for _ in range(3):
        said = browser.get("/login/provider")
        assert said.status_code == 502
        assert "does not answer" in said.text
    assert len(provider.asked) == 1
    token = browser.app.state.service.access.create("admin", None, "")[1]
    assert browser.post("/login", data={"token": token}).status_code == 303  # tokens go on
    provider.away = False
    monkeypatch.setattr(identity, "_AGAIN", 0.0)
    assert sign_in(browser).status_code == 200


@pytest.mark.parametrize(
    "changed",
    [
        {"issuer": "https://elsewhere.example"},
        {"token_endpoint": "http://elsewhere.example/token"},
        {"jwks_uri": None},
        {"authorization_endpoint": "javascript:alert(1)"},
    ],
)
def test_a_description_that_is_not_the_providers_is_not_followed(browser, provider, changed):
    provider.describe = lambda found: found | changed
    assert browser.get("/login/provider").status_code == 502


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"oidc_client": ""}, "BLINDSTEP_OIDC_CLIENT"),
        ({"address": ""}, "BLINDSTEP_ADDRESS"),
        ({"address": "http://votes.example.org"}, "https"),
        ({"oidc_issuer": "http://id.example.org"}, "https"),
        ({"oidc_secret_file": "/nowhere"}, "/nowhere"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(settings, changed, word):
    with pytest.raises(InvalidArgument, match=word) as refused:
        dataclasses.replace(settings, **changed).provider(SECRETS)
    assert "\n" not in str(refused.value)
    assert settings.provider(SECRETS) is not None
    assert dataclasses.replace(settings, oidc_issuer="").provider(SECRETS) is None


def test_without_the_extra_it_says_what_to_install(settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "authlib.integrations.requests_client", None)
    with pytest.raises(InvalidArgument, match=r"pip install '\.\[oidc\]'"):
        settings.provider(SECRETS)


def test_without_a_provider_there_is_no_such_way_in(client):
    assert "organisation" not in client.get("/login").text
    assert client.get("/login/provider").status_code == 404
    assert client.get(RETURN).status_code == 404


def test_roles_are_read_from_a_claim_or_from_inside_one():
    nested = {"realm_access": {"roles": ["a", 7]}, "https://x.org/roles": "b"}
    assert roles_of(nested, "realm_access.roles") == {"a"}
    assert roles_of(nested, "https://x.org/roles") == {"b"}
    assert roles_of(nested, "realm_access.none.at.all") == set()
    assert roles_of(nested, "realm_access") == set()
