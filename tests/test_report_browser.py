"""The report in a real browser: charts are drawn, sorting, filtering and keys work, and nothing else is loaded.

Run with ``-s`` to see how long a page with a thousand failures takes to open, and how large it is.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from operant.report import write_report
from report_folder import campaign_folder, failures

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

FAILURES = 1000
NAMES = ("<b>cat</b>", "dog & co", "cow", "hen")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with a thousand failures of 28 x 28 pixels."""
    found = failures(2 * FAILURES + 10, (1, 28, 28))
    found = found.with_columns(move=["gradient" if i % 4 else "turn & <i>" for i in range(len(found))])
    folder = campaign_folder(tmp_path_factory.mktemp("browser") / "run", shape=(1, 28, 28), names=NAMES, found=found)
    return write_report(folder)


@pytest.fixture(scope="module")
def browser() -> Iterator["sync_api.Browser"]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: "sync_api.Browser", report: Path) -> Iterator["sync_api.Page"]:
    """The opened report; it must not log or request anything."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    opened, logged, requested = context.new_page(), [], []
    opened.on("console", lambda message: logged.append(message.text))
    opened.on("pageerror", lambda error: logged.append(str(error)))
    opened.on("request", lambda request: requested.append(request.url))
    opened.goto(report.as_uri())
    yield opened
    assert logged == []
    assert [url for url in requested if not url.startswith("data:")] == [report.as_uri()]
    context.close()


def shown(page: "sync_api.Page", what: str) -> list[str]:
    """A data attribute of every card that passes the filters, in order; all pages of cards are opened first."""
    page.eval_on_selector("#more", "more => { while (!more.hidden) more.click(); }")
    return page.eval_on_selector_all(".card:not([hidden])", f"cards => cards.map(card => card.dataset.{what})")


def test_charts_are_drawn_and_described(page):
    charts = page.locator("svg.chart:visible")
    assert charts.count() == 8
    for i in range(charts.count()):
        box = charts.nth(i).bounding_box()
        assert box["width"] > 300
        assert box["height"] > 80
        assert charts.nth(i).locator("title").text_content()
        assert charts.nth(i).locator("desc").text_content()
    assert page.locator("svg.pmi:visible .point").count() == 2


def test_a_thousand_failures_open_fast_and_fit(page, report):
    timing = page.evaluate("performance.getEntriesByType('navigation')[0].toJSON()")
    size = report.stat().st_size
    print(f"\n{FAILURES} failures: loaded after {timing['loadEventEnd'] / 1000:.2f} s, {size / 1e6:.1f} MB")
    assert len(shown(page, "rank")) == FAILURES
    assert size < 10_000_000


@pytest.mark.parametrize(("by", "falling"), [("-naturalness", True), ("-mass", True), ("distance", False)])
def test_failures_are_sorted(page, by, falling):
    page.select_option("#sort", by)
    values = [float(value) for value in shown(page, by.removeprefix("-"))]
    assert values == sorted(values, reverse=falling)
    assert len(values) == FAILURES


def test_failures_are_filtered_and_counted(page):
    page.select_option("[data-filter=label]", label="<b>cat</b>")
    cats = shown(page, "label")
    assert set(cats) == {"0"}
    assert page.locator("#count").text_content() == f"{len(cats)} failures"
    page.select_option("[data-filter=move]", label="turn & <i>")
    both = shown(page, "move")
    assert set(both) == {"turn & <i>"}
    assert 0 < len(both) <= len(cats)
    page.select_option("[data-filter=move]", "")
    page.check("#learned")
    assert set(shown(page, "learned")) == {"1"}
    page.select_option("[data-filter=label]", "")
    page.uncheck("#learned")
    assert len(shown(page, "rank")) == FAILURES


def test_keys_move_between_failures(page):
    page.locator(".card").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    focused = "document.activeElement.dataset.rank"
    assert page.evaluate(focused) == "1"
    page.keyboard.press("ArrowDown")
    assert int(page.evaluate(focused)) > 2
    page.keyboard.press("End")
    assert page.evaluate(focused) == str(FAILURES - 1)
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    dialog = page.locator("dialog[open]")
    assert dialog.locator("img").count() == 3
    first = dialog.locator(".what").text_content()
    page.keyboard.press("ArrowRight")
    assert dialog.locator(".what").text_content() != first
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    assert page.evaluate(focused) == "1"


def test_pictures_are_loaded_when_they_become_visible(page):
    page.locator(".card img").first.scroll_into_view_if_needed()
    assert page.evaluate("document.querySelector('.card img').decode().then(() => true)")
    assert page.evaluate("document.querySelector('.card img').naturalWidth") == 28


def test_light_and_dark(page):
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(colour)
    assert light != dark
    page.locator("#theme").click()
    assert page.evaluate(colour) == light
    page.emulate_media(color_scheme="light")
    page.locator("#theme").click()
    assert page.evaluate(colour) == dark


@pytest.mark.parametrize("width", [320, 390, 800, 1400])
def test_nothing_is_wider_than_the_window(page, width):
    page.set_viewport_size({"width": width, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_names_with_markup_are_text(page):
    assert page.locator("#cards b b").count() == 0
    assert "<b>cat</b>" in page.locator("#cards").text_content()


def test_it_can_be_read_without_scripts(browser, report):
    context = browser.new_context(java_script_enabled=False)
    opened = context.new_page()
    opened.goto(report.as_uri())
    assert opened.locator(".card").count() == FAILURES
    assert not opened.locator(".controls").is_visible()
    context.close()


def test_it_prints_on_a_few_pages(page):
    content = page.pdf(format="A4")
    assert content.startswith(b"%PDF")
    assert 3 <= content.count(b"/Type /Page\n") + content.count(b"/Type /Page/") <= 20
