"""Triage in a real browser: keys mark, what is marked stays, two people keep apart, and a campaign gets its labels."""

import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from operant import Classifier, Samples, Suite, load_digits, spawn
from operant.campaign import Campaign
from operant.data import LabelFolder, LabelsMissing
from operant.data.label_folder import name_of
from operant.generate import GradientMove
from operant.networks import fit, initialise
from operant.retrain import OperationalFinetune
from operant.triage import SamplePlan, open_desk, read_verdicts
from operant.triage.server import _listen, _redirect_file, make_app

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="the extra [triage] is not installed")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

CLASSES = ("<b>cat</b>", "dog & co", "cow", "hen")
METHOD = "<img src=x onerror=alert(1)>"
TOKEN = "a-token-nobody-knows"


def made(n: int = 80, shape: tuple[int, ...] = (1, 12, 12)) -> Suite:
    g = spawn(0, "browser")
    seeds = Samples(torch.rand(10, *shape, generator=g), torch.arange(10) % 4)
    origin = torch.arange(n) % 10
    x = (seeds.x[origin] + 0.1 * torch.rand(n, *shape, generator=g)).clamp(0, 1)
    prediction = (seeds.labels[origin] + 1 + torch.randint(3, (n,), generator=g)) % 4
    columns = {"naturalness": torch.rand(n, generator=g), "mass": torch.rand(n, generator=g)}
    return Suite.of(x, seeds=seeds, origin=origin, prediction=prediction, method=METHOD, columns=columns)


@pytest.fixture(scope="module")
def browser() -> Iterator["sync_api.Browser"]:
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield launched
        launched.close()


class Pages:
    """Opens pages and hears what they complain of and whom they ask."""

    def __init__(self, browser: "sync_api.Browser") -> None:
        self.context = browser.new_context(viewport={"width": 1400, "height": 900})
        self.said: list[str] = []
        self.asked: list[str] = []

    def close(self) -> None:
        for page in self.context.pages:
            page.close()

    def open(self, address: str, **viewport: int) -> "sync_api.Page":
        page = self.context.new_page()
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        if viewport:
            page.set_viewport_size(viewport)
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        return page


@contextmanager
def serving(pages: Pages, path: Path, **options: Any) -> Iterator[str]:
    """The address of a page for a folder, with the token; pages are closed before the server ends."""
    listening = _listen(0)
    config = uvicorn.Config(make_app(open_desk(path, **options), TOKEN), log_level="warning", ws="none", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/?token={TOKEN}"
    finally:
        pages.close()
        server.should_exit = True
        thread.join()
        listening.close()


@pytest.fixture
def pages(browser: "sync_api.Browser") -> Iterator[Pages]:
    opened = Pages(browser)
    yield opened
    opened.context.close()
    assert opened.said == []
    assert all(re.match(r"http://127\.0\.0\.1:\d+/|data:", url) for url in opened.asked)


def settled(page: "sync_api.Page") -> None:
    """Everything that was marked is acknowledged."""
    page.wait_for_selector("body[data-pending='0']")


def press(page: "sync_api.Page", keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)
    settled(page)


def marked(page: "sync_api.Page", count: str) -> None:
    sync_api.expect(page.locator("#count")).to_contain_text(count)


def verdicts(path: Path, by: str) -> list[str]:
    """In the order in which they were given."""
    return [j.verdict for j in sorted(read_verdicts(path), key=lambda j: j.at) if j.by == by and j.verdict]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made().save(tmp_path / "suite")


def test_the_file_that_is_opened_leads_to_the_page(browser, tmp_path) -> None:
    """It lies elsewhere, so that the page is opened from another origin; and stays open when it is loaded again."""
    pages = Pages(browser)
    with serving(pages, made().save(tmp_path / "suite")) as address, _redirect_file(address) as door:
        page = pages.open(door)
        assert page.url == address.partition("?")[0]
        page.reload()
        page.wait_for_selector("body[data-ready]")
    pages.context.close()
    assert pages.said == []


def test_ten_are_marked_by_keys_and_stay_marked(pages, folder) -> None:
    with serving(pages, folder, plan=SamplePlan(n=20), by="ann", classes=CLASSES) as address:
        page = pages.open(address)
        assert "token" not in page.url
        marked(page, "0 of 20 marked")
        press(page, "vxuv1232vx")
        marked(page, "10 of 20 marked, about ")  # and how long the rest may take
        given = ["valid", "invalid", "unsure", "valid", "valid", "invalid", "unsure", "invalid", "valid", "invalid"]
        assert verdicts(folder, "ann") == given
        page.reload()
        page.wait_for_selector("body[data-ready]")
        marked(page, "10 of 20 marked")
        assert page.locator(".place").text_content() == "11 of 20"  # where one had got to
        for verdict in reversed(given):
            page.keyboard.press("ArrowLeft")
            sync_api.expect(page.locator(f"#verdicts .{verdict}")).to_have_attribute("aria-pressed", "true")
        sync_api.expect(page.locator("#share .big")).to_have_text("40\u00a0%")
        press(page, "c")
        marked(page, "9 of 20 marked")
        press(page, "z")
        marked(page, "10 of 20 marked")
    assert Suite.open(folder)["verdict_by"].tolist().count("ann") == 10


def test_a_rejected_mark_is_reported_and_not_shown_as_marked(pages, folder) -> None:
    with serving(pages, folder, plan=SamplePlan(n=10), by="ann") as address:
        page = pages.open(address)
        press(page, "v")
        page.route("**/api/mark", lambda route: route.abort())
        page.keyboard.press("x")
        sync_api.expect(page.locator("#toast")).to_contain_text("The server does not answer")
        marked(page, "1 of 10 marked")
        page.unroute("**/api/mark")
        press(page, "u")
        marked(page, "2 of 10 marked")
        pages.said.clear()  # the browser reports what was cut off
    assert verdicts(folder, "ann")[0] == "valid"
    assert sorted(verdicts(folder, "ann")) == ["unsure", "valid"]


def test_a_page_goes_on_when_its_list_is_forgotten(pages, folder) -> None:
    """As when the server was started again at the same port."""
    with serving(pages, folder, by="ann") as address:
        page = pages.open(address)
        press(page, "v")
        page.evaluate("""async () => {
            for (let i = 0; i < 33; i++) await ask("api/list", {order: "suite"});
            rows = new Map();
        }""")
        page.keyboard.press("ArrowRight")
        sync_api.expect(page.locator(".place")).to_have_text("3 of 80")
        pages.said.clear()  # the browser reports the 404


def test_two_people_in_two_tabs(pages, folder) -> None:
    with serving(pages, folder, plan=SamplePlan(n=10), by="ann") as address:
        ann, bob = pages.open(address), pages.open(address)
        bob.locator("#who").click()
        bob.locator("#name").fill("bob")
        bob.keyboard.press("Enter")
        sync_api.expect(bob.locator("#who")).to_have_text("bob")
        press(ann, "vvxv")
        assert bob.locator("#others").text_content() == ""  # not before one's own verdict
        press(bob, "vxxv")
        bob.reload()
        bob.wait_for_selector("body[data-ready]")
        sync_api.expect(bob.locator("#who")).to_have_text("bob")  # a tab stays one person's
        sync_api.expect(bob.locator("#agreement")).to_contain_text("3 of 4, κ 0.50")
        bob.keyboard.press("ArrowLeft")
        sync_api.expect(bob.locator("#others")).to_have_text("ann: valid")
        bob.select_option("#label", "2")  # of which they have judged none
        marked(bob, "0 of 3 marked")
        bob.get_by_text("Show where people differ").click()
        marked(bob, "1 of 1 marked")
        sync_api.expect(bob.locator("#others")).to_have_text("ann: valid")
        sync_api.expect(bob.locator("#verdicts .invalid")).to_have_attribute("aria-pressed", "true")
    assert verdicts(folder, "ann") == ["valid", "valid", "invalid", "valid"]
    assert verdicts(folder, "bob") == ["valid", "invalid", "invalid", "valid"]
    assert (Suite.open(folder)["verdict"] == "disputed").sum() == 1


def test_undo_goes_back_step_by_step(pages, folder) -> None:
    with serving(pages, folder, plan=SamplePlan(n=10), by="ann") as address:
        page = pages.open(address)
        press(page, "vxu")
        page.keyboard.press("z")
        page.keyboard.press("Control+z")
        sync_api.expect(page.locator(".place")).to_have_text("2 of 10")
        marked(page, "1 of 10 marked")
        assert verdicts(folder, "ann") == ["valid"]
        press(page, "zz")
        sync_api.expect(page.locator("#toast")).to_have_text("Nothing to undo.")
        assert verdicts(folder, "ann") == []


def test_tags_are_added_completed_and_filtered_by(pages, folder) -> None:
    with serving(pages, folder, plan=SamplePlan(n=10), by="ann") as address:
        page = pages.open(address)
        for word in ("rotation", "<b>dark</b>"):
            page.keyboard.press("t")
            page.keyboard.type(word)
            page.keyboard.press("Enter")
        settled(page)
        assert page.locator("#chips button").all_text_contents() == ["rotation", "<b>dark</b>"]
        page.locator("#chips button").first.click()
        settled(page)
        press(page, "v")
        for word, known in (("<b>dark</b>", 1), ("rotation", 0)):  # offered for the next one, after a moment
            sync_api.expect(page.locator(f"#known-tags option[value='{word}']")).to_have_count(known)
        page.select_option("#tag-filter", "<b>dark</b>")
        marked(page, "1 of 1 marked")
    assert [(j.verdict, j.tags) for j in read_verdicts(folder)] == [("valid", ("<b>dark</b>",))]


def test_cases_are_filtered_and_sorted(pages, folder) -> None:
    with serving(pages, folder, by="ann", classes=CLASSES) as address:
        page = pages.open(address)
        suite = Suite.open(folder)
        page.select_option("#order", "-mass")
        marked(page, "0 of 80 marked")
        largest = f"{float(suite['mass'].max()):.3g}"
        sync_api.expect(page.locator("#facts")).to_contain_text(f"mass{largest}")
        page.select_option("#label", label="<b>cat</b>")
        cats = int((suite.label == 0).sum())
        marked(page, f"0 of {cats} marked")
        assert page.locator("#what").text_content().startswith("Should be <b>cat</b>")
        press(page, "vv")
        page.select_option("#show", "done")
        marked(page, "2 of 2 marked")
        page.select_option("#show", "unsure")
        sync_api.expect(page.locator("#empty")).to_have_text("Nothing matches the filters.")
        page.select_option("#order", "ranked")
        page.select_option("#show", "todo")
        marked(page, f"0 of {cats - 2} marked")


def test_the_blind_see_no_answers(pages, folder) -> None:
    with serving(pages, folder, by="ann", blind=True) as address:
        page = pages.open(address)
        sync_api.expect(page.locator("#what")).to_contain_text("model says hidden")
        assert not page.locator("#prediction").is_visible()
        assert METHOD not in str(page.locator("#facts").text_content())  # a method's name may give away its target
        press(page, "vv")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("b")
        sync_api.expect(page.locator("#what")).to_contain_text(re.compile(r"model says \d"))
        sync_api.expect(page.locator(".place")).to_have_text("2 of 80")  # the same case
        sync_api.expect(page.locator("#facts")).to_contain_text(METHOD)


def test_pictures_are_shown_large_and_the_difference_can_be_switched(pages, folder) -> None:
    with serving(pages, folder, by="ann") as address:
        page = pages.open(address)
        images = page.locator("#pictures img")
        assert [images.nth(i).get_attribute("data-what") for i in range(3)] == ["seed", "case", "difference"]
        assert page.evaluate("document.querySelector('#pictures img').decode().then(() => true)")
        assert images.first.bounding_box()["width"] > 250
        assert page.evaluate("document.querySelector('#pictures img').naturalWidth") == 12
        page.select_option("#factor", "5")
        sync_api.expect(page.locator("figure.difference figcaption")).to_have_text("difference \u00d7 5")
        page.keyboard.press("+")
        sync_api.expect(page.locator("figure.difference figcaption")).to_have_text("difference \u00d7 10")
        page.keyboard.press("d")
        sync_api.expect(images).to_have_count(2)
        case = images.nth(1).get_attribute("src")
        page.keyboard.down("s")
        assert images.nth(1).get_attribute("src") == images.first.get_attribute("src")
        page.keyboard.up("s")
        assert images.nth(1).get_attribute("src") == case
        fetched = [url for url in pages.asked if "/image/" in url]
        assert len(fetched) < 60  # of 80 cases with three pictures each


def test_names_with_markup_are_words(pages, folder) -> None:
    with serving(pages, folder, by="<b>ann</b>", classes=CLASSES) as address:
        page = pages.open(address)
        press(page, "v")
        assert "<b>ann</b>" in page.locator("#counts").text_content()
        assert page.locator("#who").text_content() == "<b>ann</b>"
        assert METHOD in page.locator("#facts").text_content()
        assert page.locator("b b, #facts img, #who b").count() == 0


def test_help_tells_the_keys_in_light_and_dark(pages, folder) -> None:
    with serving(pages, folder) as address:
        page = pages.open(address)
        page.keyboard.press("?")
        dialog = page.locator("dialog[open]")
        assert "amplify the difference more" in dialog.text_content()
        page.keyboard.press("v")  # keys mark nothing now
        page.keyboard.press("Escape")
        assert page.locator("dialog[open]").count() == 0
        marked(page, "0 of 80 marked")
        colour = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(colour)
        page.emulate_media(color_scheme="dark")
        dark = page.evaluate(colour)
        assert light != dark
        page.locator("#theme").click()
        assert page.evaluate(colour) == light


def test_everything_is_within_reach_at_every_width(pages, folder) -> None:
    with serving(pages, folder, by="somebody with a rather long name", classes=CLASSES) as address:
        page = pages.open(address, width=390, height=844)
        for n, width in enumerate((320, 390, 800, 1400)):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            buttons = [page.locator(f"#verdicts .{verdict}") for verdict in ("valid", "invalid", "unsure")]
            assert all(b.bounding_box()["y"] + b.bounding_box()["height"] <= 844 for b in buttons)  # no scrolling
            assert page.locator("#order").is_visible() == (width > 704)  # or folded away
            assert page.locator("summary").is_visible() == (width <= 704)
            buttons[0].click()
            settled(page)
            marked(page, f"{n + 1} of 80 marked")
        page.set_viewport_size({"width": 844, "height": 390})  # a phone on its side
        assert page.evaluate("document.documentElement.scrollWidth") <= 844
        page.wait_for_function(
            """() => document.querySelector("#pictures img").getBoundingClientRect().bottom
                  <= document.querySelector("#verdicts").getBoundingClientRect().top"""
        )  # the page is laid out again some time after its size has changed
        bottom = [page.locator(what).first.bounding_box() for what in ("#pictures img", "#verdicts")]
        assert bottom[0]["y"] + bottom[0]["height"] <= bottom[1]["y"] < bottom[1]["y"] + bottom[1]["height"] <= 390


def test_tables_are_judged_by_the_values_that_changed(pages, tmp_path) -> None:
    path = made(20, shape=(6,)).save(tmp_path / "suite")
    with serving(pages, path, by="ann") as address:
        page = pages.open(address)
        assert page.locator("#pictures tbody tr").count() == 6
        press(page, "vx")
    assert verdicts(path, "ann") == ["valid", "invalid"]


def test_another_page_can_neither_read_nor_write(browser, folder, tmp_path) -> None:
    """Of another origin, in the very browser that holds the cookie."""
    pages = Pages(browser)
    with serving(pages, folder, by="ann") as address:
        pages.open(address)
        foreign = pages.context.new_page()
        base = address.partition("?")[0]
        foreign.route("http://evil.test/", lambda route: route.fulfill(body="<p>evil", content_type="text/html"))
        foreign.goto("http://evil.test/")
        write = """async (base) => {
            const body = JSON.stringify({row: 0, by: "eve", verdict: "valid"});
            const kinds = ["application/json", "text/plain"];
            for (const type of kinds) for (const mode of ["cors", "no-cors"])
                await fetch(base + "api/mark", {method: "POST", mode, credentials: "include", body, headers: {"content-type": type}}).catch(() => 0);
            return fetch(base + "api/about", {credentials: "include"}).then((answer) => answer.text(), () => "blocked");
        }"""  # noqa: E501
        assert foreign.evaluate(write, base) == "blocked"
    pages.context.close()
    assert read_verdicts(folder) == []


# Labels ---------------------------------------------------------------------------------------------------------------


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def test_a_campaign_gets_its_labels_through_the_page(pages, tmp_path) -> None:
    """It asks, a person answers in the browser, it goes on; until it ends, in the same page."""
    digits = load_digits()
    train, clean = digits.train[:300], digits.train[300:400]
    start = initialise(network, generator=spawn(0, "weights"))
    model = Classifier(fit(start, train, epochs=6, generator=spawn(0, "fit"), progress=False).module)
    field = digits.train[400:1000]
    truth = {name_of(i): y for i, y in zip(field.ids.tolist(), field.labels.tolist(), strict=True)}
    campaign = Campaign(
        requirement=0.3,
        moves={"gradient": partial(GradientMove, radius=0.5, steps=2)},
        rounds=1,
        labels=60,
        label_batch=30,
        seeds_per_round=10,
        dimensions=4,
        retrainer=OperationalFinetune(epochs=1, steps=5, progress=False),
    )
    ask = LabelFolder(folder=tmp_path / "to_label", classes=10)
    go_on = partial(
        campaign, model, train=train, clean=clean, field=Samples(field.x, ids=field.ids), labeller=ask,
        folder=tmp_path / "run",
    )  # fmt: skip
    with pytest.raises(LabelsMissing):
        go_on()
    with serving(pages, tmp_path / "to_label", by="ann") as address:
        page = pages.open(address)
        for _ in range(5):
            answer(page, truth, ask)
            try:
                delivered = go_on()
                break
            except LabelsMissing:
                page.wait_for_function(
                    "() => !document.querySelector('#share').textContent.includes('All inputs are labelled')"
                )
        assert "All inputs are labelled" in str(page.locator("#share").text_content())
    assert delivered.rounds[0].assessment.labels >= 30
    given = {name: label for name, label in ask.read().items() if label is not None}
    assert given == {name: truth[name] for name in given}


def answer(page: "sync_api.Page", truth: dict[str, int], ask: LabelFolder) -> None:
    """Give a label to everything that has none, by the keys; and one wrong one, which is undone."""
    missing = [name for name, label in ask.read().items() if label is None]
    sync_api.expect(page.locator("#facts")).to_contain_text(missing[0])
    page.keyboard.press(str((truth[missing[0]] + 1) % 10))
    settled(page)
    page.keyboard.press("z")
    for name in missing:
        sync_api.expect(page.locator("#facts")).to_contain_text(name)
        page.keyboard.press(str(truth[name]))
    settled(page)
    sync_api.expect(page.locator("#share")).to_contain_text("All inputs are labelled")
