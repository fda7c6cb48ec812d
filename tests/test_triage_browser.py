"""Triage in a real browser: keys mark, what is marked stays, two people keep apart, and a campaign gets its labels."""

import re
import shutil
import threading
import unicodedata
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
from operant.triage.connections import server_config
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
    server = uvicorn.Server(server_config(make_app(open_desk(path, **options), TOKEN)))
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
        cut_off = "() => fetch('api/mark', {method: 'POST'}).then(() => false, () => true)"
        page.wait_for_function(cut_off)  # a browser that is busy lets requests through for a while
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
        judge_draws=0,
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
    sync_api.expect(page.locator("#what")).to_contain_text(missing[0])
    page.keyboard.press(str((truth[missing[0]] + 1) % 10))
    settled(page)
    page.keyboard.press("z")
    for name in missing:
        sync_api.expect(page.locator("#what")).to_contain_text(name)
        page.keyboard.press(str(truth[name]))
    settled(page)
    sync_api.expect(page.locator("#share")).to_contain_text("All inputs are labelled")


# The list of classes --------------------------------------------------------------------------------------------------

COLOURS = ("red", "green", "blue", "dark", "light")
THINGS = ("tree", "truck", "cat", "Éclair", "bird", "house 2", "sea", "road", "<b>lamp</b>", "unit", "seal", "suit")


def class_names(n: int) -> tuple[str, ...]:
    """Names of several words, some with accents, capitals, digits or markup."""
    every = [f"{colour} {thing}" for thing in THINGS for colour in COLOURS]
    twisted = [f"{name} {name[::-1]}" for name in every]
    return tuple((every + twisted + [f"other_{name}" for name in every] + [f"my {name}" for name in every])[:n])


def to_label(folder: Path, n: int, *, examples: bool = True, names: tuple[str, ...] = ()) -> LabelFolder:
    """A folder of pictures to label, with an example of each class but the last one."""
    g = spawn(0, "classes", n)
    asked = Samples(torch.rand(12, 3, 8, 8, generator=g), names=tuple(f"IMG_{i:03d}.jpg" for i in range(12)))
    known = Samples(torch.rand(3 * n, 3, 8, 8, generator=g), (torch.arange(3 * n) % (n - 1)))
    ask = LabelFolder(folder=folder, classes=n, names=names or class_names(n), examples=known if examples else None)
    with pytest.raises(LabelsMissing):
        ask(asked)
    return ask


def shown(page: "sync_api.Page") -> list[str]:
    return page.locator("#classes .class-name").all_text_contents()


def found_by(text: str, names: tuple[str, ...]) -> list[str]:
    """What the page should show for a text: names that begin with it, with a word that does, and with all its words."""
    simple = lambda s: "".join(c for c in unicodedata.normalize("NFD", s) if not unicodedata.combining(c)).lower()  # noqa: E731
    text = simple(text.strip())

    def rank(name: str) -> int:
        words = re.split(r"[\W_]+", simple(name))
        return 0 if simple(name).startswith(text) else 1 if any(word.startswith(text) for word in words) else 2

    return sorted((name for name in names if all(word in simple(name) for word in text.split())), key=rank)


def labels_in(ask: LabelFolder) -> list[int | None]:
    return list(ask.read().values())


def test_typing_filters_and_enter_chooses_among_many_classes(pages, tmp_path) -> None:
    ask = to_label(tmp_path / "to_label", 100)
    names = class_names(100)
    with serving(pages, ask.folder) as address:
        page = pages.open(address)
        sync_api.expect(page.locator("#search")).to_be_focused()  # one can type at once
        assert shown(page) == list(names)
        for i, word in enumerate(["red", "eclair", "truck", "ÉCLAIR b", "  dark"]):
            sync_api.expect(page.locator("#what")).to_contain_text(f"IMG_{i:03d}.jpg")
            page.keyboard.type(word)
            expected = found_by(word, names)
            assert shown(page) == expected
            assert page.locator("#found").text_content() == f"{len(expected)} of 100"
            page.keyboard.press("Enter")
            settled(page)
            assert labels_in(ask)[i] == names.index(expected[0])
            assert page.locator("#search").input_value() == ""  # ready for the next one
        page.keyboard.type("no such")
        page.keyboard.press("Enter")
        assert page.locator("#found").text_content() == "no such class"
        page.keyboard.press("Escape")
        page.keyboard.press("Enter")  # nothing is selected
        settled(page)
        assert labels_in(ask)[5:] == [None] * 7


def test_arrows_reach_every_class_and_the_screen_reader_follows(pages, tmp_path) -> None:
    ask = to_label(tmp_path / "to_label", 30)
    names = class_names(30)
    with serving(pages, ask.folder) as address:
        page = pages.open(address)
        search = page.get_by_role("combobox", name="Class")
        options = page.get_by_role("listbox", name="Classes").get_by_role("option")
        assert options.count() == 30
        columns = page.evaluate(
            "() => new Set([...document.querySelectorAll('#classes li')].map((item) => item.offsetLeft)).size"
        )
        for i, (down, right) in enumerate([(0, 0), (1, 0), (1, 2), (2, 1), (0, columns - 1)]):
            page.keyboard.press("ArrowDown")  # enters the list
            for key, times in (("ArrowDown", down), ("ArrowRight", right)):
                for _ in range(times):
                    page.keyboard.press(key)
            place = down * columns + right
            option = page.locator("#classes").get_by_role("option", selected=True)
            assert option.count() == 1
            assert option.get_attribute("id") == search.get_attribute("aria-activedescendant") == f"class-{place}"
            assert page.get_by_role("option", name=names[place], exact=True).count() == 1
            page.keyboard.press("Enter")
            settled(page)
            assert labels_in(ask)[i] == place
        page.keyboard.press("ArrowLeft")  # in an empty search: the input before
        sync_api.expect(page.locator("#classes [aria-current] .class-name")).to_have_text(names[columns - 1])
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert page.evaluate(outline) == "solid"  # the focus is visible
        for _ in range(12):
            page.keyboard.press("Tab")
            assert page.evaluate(f"document.activeElement === document.body || {outline} !== 'none'")


def test_digits_choose_among_the_first_ten_shown_unless_they_belong_to_a_name(pages, tmp_path) -> None:
    ask = to_label(tmp_path / "to_label", 60)
    names = class_names(60)
    with serving(pages, ask.folder) as address:
        page = pages.open(address)
        keys = page.locator("#classes kbd:visible")
        page.keyboard.type("tr")
        assert keys.all_text_contents() == [str(i) for i in range(10)]
        page.keyboard.press("7")
        settled(page)
        assert labels_in(ask)[0] == names.index(found_by("tr", names)[7])
        assert "2" not in keys.all_text_contents()  # there are names with it
        page.keyboard.type("red house 2")
        assert page.locator("#search").input_value() == "red house 2"
        page.keyboard.press("0")
        settled(page)
        assert labels_in(ask)[1] == names.index("red house 2")
        page.keyboard.press("Escape")
        assert keys.all_text_contents() == [str(i) for i in range(10)]  # outside the search, all of them
        page.keyboard.press("2")
        settled(page)
        assert labels_in(ask) == [labels_in(ask)[0], names.index("red house 2"), 2, *[None] * 9]


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        ([str(i) for i in range(1, 11)], "1234567890"),
        ([str(i) for i in range(10, 0, -1)], "0987654321"),
        ([str(i) for i in range(11)], "0123456789-"),  # 0 is taken, so 10 has no key
        (["5", "cat", "0", "10", "dog"], "51023"),  # the others get the digits that are left, by place
        (["cat", "10", "dog"], "102"),
    ],
)
def test_a_class_that_is_called_by_a_digit_has_that_key(pages, tmp_path, names, keys) -> None:
    ask = to_label(tmp_path / "to_label", len(names), names=tuple(names))
    with serving(pages, ask.folder) as address:
        page = pages.open(address)
        page.keyboard.press("Escape")  # leaves the search, if it has the focus
        hints = [page.locator("#classes li").nth(i).locator("kbd") for i in range(len(names))]
        shown_keys = [hint.text_content() if hint.get_attribute("hidden") is None else "-" for hint in hints]
        assert "".join(map(str, shown_keys)) == keys
        works = [i for i, key in enumerate(keys) if key != "-"]
        press(page, "".join(keys[i] for i in works))
        settled(page)
        assert labels_in(ask)[: len(works)] == works


def test_labels_are_undone_and_skipped_by_keys_and_stay_when_the_page_is_loaded_again(pages, tmp_path) -> None:
    ask = to_label(tmp_path / "to_label", 10)
    with serving(pages, ask.folder) as address:
        page = pages.open(address)
        for word in ("choose", "search", "undo", "skip"):
            sync_api.expect(page.locator("#hints")).to_contain_text(word)
        press(page, "3s51")
        assert labels_in(ask) == [3, None, 5, 1, *[None] * 8]
        press(page, "u")
        sync_api.expect(page.locator(".place")).to_have_text("4 of 12")
        assert labels_in(ask) == [3, None, 5, *[None] * 9]
        page.reload()
        page.wait_for_selector("body[data-ready]")
        marked(page, "2 of 12 labelled")
        sync_api.expect(page.locator(".file")).to_have_text("IMG_001.jpg")  # the one that was skipped
        press(page, "/truck")
        page.keyboard.press("Enter")
        settled(page)
        assert labels_in(ask)[1] == found_label("truck", 10)
        page.keyboard.press("Control+z")  # in the empty search
        sync_api.expect(page.locator(".place")).to_have_text("2 of 12")
        page.keyboard.press("Escape")
        press(page, "u")
        assert labels_in(ask) == [3, *[None] * 11]
        sync_api.expect(page.locator("#what")).to_contain_text("Which class is this?")
        page.locator("#classes li").nth(9).click()
        settled(page)
        assert labels_in(ask)[2] == 9
    assert ask.files() == dict(zip(ask.read(), [f"IMG_{i:03d}.jpg" for i in range(12)], strict=True))


def found_label(text: str, n: int) -> int:
    return class_names(n).index(found_by(text, class_names(n))[0])


def test_two_hundred_classes_are_filtered_in_the_page(pages, tmp_path) -> None:
    """Without requests, and with the elements that are there; pictures are fetched as they come into view."""
    ask = to_label(tmp_path / "to_label", 200)
    names = class_names(200)
    with serving(pages, ask.folder) as address:
        page = pages.open(address)
        sync_api.expect(page.locator("#classes img").first).to_be_visible()
        page.wait_for_load_state("networkidle")
        examples = [url for url in pages.asked if "/example.png" in url]
        assert 5 < len(examples) < 170
        assert page.locator("#classes img").count() == 199  # the last class has no example
        page.evaluate("window.items = new Set(document.querySelectorAll('#classes li'))")
        before = len([url for url in pages.asked if "/api/" in url and "/api/state" not in url])
        for word in (
            "t",
            "tr",
            "tree",
            "ed",
            "e",
            "eert",
            "other",
            "lamp",
            "<b>",
            "_dark",
            "2",
            "q",
            "tree d",
            "dark tree",
            "",
        ):
            page.locator("#search").fill(word)
            assert shown(page) == found_by(word, names)
        assert page.evaluate("[...document.querySelectorAll('#classes li')].every((item) => items.has(item))")
        assert len([url for url in pages.asked if "/api/" in url and "/api/state" not in url]) == before
        assert page.locator("#classes b").count() == 0  # markup in names stays text


@pytest.mark.parametrize("examples", [True, False])
@pytest.mark.parametrize("n", [3, 100])
def test_classes_are_within_reach_at_every_width_in_light_and_dark(pages, tmp_path, n, examples) -> None:
    ask = to_label(tmp_path / "to_label", n, examples=examples)
    with serving(pages, ask.folder) as address:
        page = pages.open(address)
        assert page.locator("#classes img").count() == (n - 1 if examples else 0)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for width in (320, 390, 800, 1100, 1400):
                page.set_viewport_size({"width": width, "height": 844})
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                for place in ("#search", "#classes li:first-child", "#pictures img"):
                    box = page.locator(place).bounding_box()
                    assert box["y"] + box["height"] <= 844  # no scrolling
                    assert box["x"] >= 0
                    assert box["x"] + box["width"] <= width
            for place in (".class-name", "#hints", "#search", ".file"):
                assert contrast(page, place) >= 4.5


def contrast(page: "sync_api.Page", place: str) -> float:
    """Of a text with what is behind it, as WCAG defines it."""
    ink, paper = page.evaluate(
        """(place) => {
            const pixel = (colour) => {
                const context = Object.assign(document.createElement("canvas"), {width: 1, height: 1}).getContext("2d");
                context.fillStyle = colour;
                context.fillRect(0, 0, 1, 1);
                return [...context.getImageData(0, 0, 1, 1).data];
            };
            let element = document.querySelector(place);
            const ink = pixel(getComputedStyle(element).color);
            while (pixel(getComputedStyle(element).backgroundColor)[3] === 0) element = element.parentElement;
            return [ink, pixel(getComputedStyle(element).backgroundColor)];
        }""",
        place,
    )

    def luminance(rgb: list[int]) -> float:
        parts = [v / 255 for v in rgb[:3]]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return sum(weight * v for weight, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted([luminance(ink), luminance(paper)])
    return (high + 0.05) / (low + 0.05)
