"""The dashboard and the voting page in a real Chromium. `make test-browser` runs these."""

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from scripts import snippet

from browser import browser, sign_in
from identity_provider import CLIENT, SECRET, identity_provider
from service_process import free_port, serving

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def chromium():
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def site_port():
    return free_port()


@pytest.fixture(scope="module")
def served(tmp_path_factory, site_port):
    folder = tmp_path_factory.mktemp("served")
    options = ("--origin", f"http://127.0.0.1:{site_port}")
    with serving(folder, options=options) as running:
        yield running


def watched(chromium, **look):
    """A page, with everything that went wrong in it, and every host that it talked to."""
    page = chromium.new_page(**look)
    page.wrong, page.hosts = [], set()
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("console", lambda said: said.type == "error" and page.wrong.append(said.text))
    page.on("request", lambda request: page.hosts.add(request.url.split("/")[2]))
    return page


def make_study(page, served, name, people="96", parameters="comedy -1 1\nmusic -1 1 0.5"):
    """Make a study with the form, by labels, and give its id."""
    page.goto(f"{served.address}/new")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Parameters").fill(parameters)
    page.get_by_label("People expected").fill(people)
    page.get_by_label("Start even if noise would win").check()
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/studies/*")
    return page.url.rpartition("/")[2]


def test_an_operator_makes_pauses_and_closes_a_study(chromium, served):
    page = watched(chromium)
    sign_in(page, served)
    study = make_study(page, served, "Films <b>& more</b>")
    assert page.get_by_role("heading", level=1).inner_text() == "Films <b>& more</b>"
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Pause").wait_for()
    page.get_by_role("button", name="Make a site token").click()
    token = page.locator("code.secret").inner_text()
    with served.client(token) as site:
        assert site.ask(study, "anna")["status"] == "asked"
    # Who comes is nowhere on the page; what is released is, and the page follows by itself.
    page.goto(f"{served.address}/studies/{study}")
    page.get_by_text("step 1 asks whoever comes").wait_for()
    with served.client() as admin:
        admin.end_window(study, 1)
    page.get_by_text("step 2 asks whoever comes").wait_for()
    assert "times the noise" in page.get_by_label("Signal").inner_text()
    page.get_by_role("button", name="End this window").click()
    page.get_by_text("step 3 asks whoever comes").wait_for()
    page.get_by_text("Close", exact=True).click()
    page.get_by_role("button", name="Close the study").click()
    page.get_by_text("closed", exact=True).first.wait_for()
    assert page.get_by_role("button", name="Pause").count() == 0
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/login")
    page.goto(f"{served.address}/studies/{study}")
    assert page.url.endswith("/login")
    assert page.wrong == []
    assert page.hosts == {served.address.removeprefix("http://")}
    page.close()


def test_a_form_that_cannot_be_read_says_what_is_wrong_and_keeps_what_was_typed(chromium, served):
    page = chromium.new_page()
    sign_in(page, served)
    page.goto(f"{served.address}/new")
    page.get_by_label("Name", exact=True).fill("kept")
    page.get_by_label("Parameters").fill("comedy 1 -1")
    page.get_by_label("People expected").fill("100")
    page.get_by_role("button", name="Start").click()
    assert "high must be above low" in page.get_by_role("alert").inner_text()
    assert page.get_by_label("Name", exact=True).input_value() == "kept"
    page.goto(f"{served.address}/login")
    page.get_by_label("Admin token").fill("wrong")
    page.keyboard.press("Enter")
    assert "not an admin token" in page.get_by_role("alert").inner_text()
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_their_screen_and_can_be_read(chromium, served, scheme, width):
    page = watched(chromium, viewport={"width": width, "height": 800}, color_scheme=scheme)
    sign_in(page, served)
    study = make_study(page, served, f"{scheme} {width}")
    for path in ("/", "/new", "/docs", f"/studies/{study}"):
        page.goto(served.address + path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        assert page.evaluate("document.querySelectorAll('h1').length") == 1
        unnamed = "[...document.querySelectorAll('input:not([hidden]),textarea,select')]"
        assert page.evaluate(f"{unnamed}.every(field => field.labels.length > 0)"), path
        assert page.evaluate(CONTRAST) >= 4.5, path
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
    assert page.wrong == []
    page.close()


def test_an_admin_signs_in_through_a_provider_and_out_again(chromium, tmp_path, monkeypatch):
    """From another site, with whose redirects a browser sends no strict cookie."""
    port = free_port()
    with identity_provider() as provider:
        provider.host = "localhost"
        provider.claims = {"sub": "1", "name": "Anna", "roles": ["blindstep-admin"]}
        for name, value in {
            "ADDRESS": f"http://127.0.0.1:{port}",
            "OIDC_ISSUER": provider.issuer,
            "OIDC_CLIENT": CLIENT,
            "OIDC_SECRET": SECRET,
        }.items():
            monkeypatch.setenv(f"BLINDSTEP_{name}", value)
        with serving(tmp_path, port=port) as served:
            page = watched(chromium.new_context())
            page.goto(f"{served.address}/")
            page.get_by_role("link", name="Sign in with your organisation").click()
            page.wait_for_url(f"{served.address}/")
            make_study(page, served, "Anna's")
            page.goto(f"{served.address}/audit")
            assert page.get_by_text("Anna").count() == 2
            page.get_by_role("button", name="Sign out").click()
            page.wait_for_url("**/login")
            page.goto(f"{served.address}/")
            assert page.url.endswith("/login")
            assert page.wrong == []
            page.context.close()
            assert SECRET not in served.log()


def test_the_longest_names_make_no_page_wider(chromium, served):
    """(In 0.2 a long name made the page 1,963 pixels wide.)"""
    page = watched(chromium, viewport={"width": 390, "height": 800})
    sign_in(page, served)
    study = make_study(page, served, "W" * 100, parameters=f"{'W' * 64} -1 1")
    with served.client() as admin:
        admin.end_window(study, 1)
    page.get_by_text("step 2 asks whoever comes").wait_for()
    for path in ("/", f"/studies/{study}", "/audit"):
        page.goto(served.address + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    page.close()


# The least contrast between text and the ground it stands on, as WCAG computes it.
CONTRAST = """() => {
  const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3)
    .map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  let least = 21;
  for (const element of document.querySelectorAll("main *, header *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || element.closest("svg") || element.offsetParent === null) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(ground(element))];
    least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return least;
}"""


def test_a_visitor_votes_twice_on_the_page(chromium, served, site_port):
    with served.client() as admin:
        weights = dict.fromkeys(("comedy", "drama", "action", "romance", "science"), (-1, 1))
        study = admin.create(
            "page", weights | {"music": (-1, 1)}, people=96, epsilon=1, despite_noise=True
        )["id"]
        token = admin.new_token("site", study)["token"]
        page_server = subprocess.Popen(
            [sys.executable, str(ROOT / "examples" / "vote_page" / "site.py"), "--study", study]
            + ["--service", served.address, "--port", str(site_port)],
            env=os.environ | {"BLINDSTEP_TOKEN": token},
            stdout=subprocess.DEVNULL,
        )
        try:
            address = f"http://127.0.0.1:{site_port}/"
            wait_for(f"{address}page.js")  # the page itself would count as a visitor
            page = watched(chromium)
            page.goto(address)
            first = page.locator("#title").inner_text()
            assert first.startswith("A film with")
            page.get_by_role("button", name="Good", exact=True).click()
            page.get_by_text("And this one?").wait_for()
            page.get_by_role("button", name="Not good").focus()
            page.keyboard.press("Enter")
            page.get_by_text("Thank you.", exact=True).wait_for()
            assert page.get_by_role("button", name="Good", exact=True).count() == 0
            page.reload()  # the same visitor has had their turn
            assert page.locator("#title").inner_text().startswith("A film with")
            assert page.get_by_role("button", name="Good", exact=True).count() == 0
            assert token not in page.content()
            assert [
                said for said in page.wrong if "favicon" not in said and "404" not in said
            ] == []
            page.close()
        finally:
            page_server.terminate()
            page_server.wait(10)


def wait_for(address):
    until = time.monotonic() + 30
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.parametrize("kind", ["vote", "comparison"])
def test_the_documented_snippet_works_in_a_page_that_a_server_renders(chromium, kind):
    """Whoever answers is shown the second question; nothing but the documentation is followed."""
    more = {"people_per_step": 16, "despite_noise": True}
    found = snippet.run(chromium, people=32, epsilon=3.0, kind=kind, **more)
    assert found["often"] == [2 if kind == "vote" else 1] * 32
