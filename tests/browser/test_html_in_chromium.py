"""The HTML report in headless Chromium: what people see, reach and print.

``make test-browser`` runs these; they need Debian's chromium and chromium-driver.
"""

import base64
import json
import os
import shutil
import time
from pathlib import Path

import builders
import pytest
from builders import failure, launches, transport
from generated import N_WORKERS, generated
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from commbench import load, stats
from commbench.reports import html

pytestmark = pytest.mark.browser
REFERENCE = Path(__file__).parents[2] / "results/reference/20261123-merge-4-backends"
FLAGS = (
    "--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-default-apps", "--disable-extensions", "--window-size=1280,1000",
)  # fmt: skip
WHITE = "rgb(255, 255, 255)"
MAX_OPEN_S, MAX_BYTES = 3.0, 10_000_000
NASTY = "</script><script>document.title = 'taken over'</script><img src=x onerror='alert(1)'>"


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    for name, path in programs.items():
        if path is None:
            pytest.fail(f"{name} is missing; on Debian: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(programs["chromium"])
    profile = tmp_path_factory.mktemp("profile")
    # Chromium refuses its sandbox to root.
    for flag in (*FLAGS, *["--no-sandbox"] * (os.geteuid() == 0), f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options, Service(str(programs["chromedriver"]))) as browser:
        yield browser


@pytest.fixture
def window(driver):
    """Return the browser, whose window and media are as before when the test has ended."""
    yield driver
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.set_window_size(1280, 1000)


class Opened:
    """A report in the browser."""

    def __init__(self, driver, path):
        self.driver = driver
        self.address = path.as_uri()
        # The address alone would keep the page, and with it the focus, of the test before.
        driver.get("about:blank")
        self.logs()
        began = time.perf_counter()
        driver.get(self.address)
        # Two frames later it has been painted.
        driver.execute_async_script(
            "const done = arguments[0];"
            "requestAnimationFrame(() => requestAnimationFrame(() => done()))"
        )
        self.seconds = time.perf_counter() - began

    def logs(self):
        messages = [entry["message"] for entry in self.driver.get_log("browser")]
        events = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        return messages, [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def run(self, script, *arguments):
        return self.driver.execute_script(f"return {script}", *arguments)

    def table(self, title):
        (table,) = (
            table
            for table in self.driver.find_elements(By.CSS_SELECTOR, "table.data")
            if table.find_element(By.TAG_NAME, "caption").text.endswith(title)
        )
        return table

    def cells(self, *pairs):
        matrix = self.driver.find_element(By.CSS_SELECTOR, "table.matrix")
        rows = matrix.find_elements(By.CSS_SELECTOR, "tbody tr")
        return [rows[src].find_elements(By.TAG_NAME, "td")[dst] for src, dst in pairs]

    def tip(self):
        return self.driver.find_element(By.CLASS_NAME, "tip").text

    def press(self, *keys):
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def background(self, selector):
        return self.run(f"getComputedStyle(document.querySelector('{selector}')).backgroundColor")

    def media(self, kind="", scheme="light"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        setting = {"media": kind, "features": features}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", setting)

    def resize(self, width):
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    def write(content):
        path = tmp_path_factory.mktemp("report") / "report.html"
        path.write_text(html.render(content), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="module")
def reference(written):
    return written(load(REFERENCE))


@pytest.fixture(scope="module")
def odd(recorded, written):
    """Return the report of a run with a slow pair, missing pairs, failures and a nasty name."""
    cases = [builders.case(name, n_workers=5) for name in ("tcp", NASTY)]
    records = [
        each
        for case in 3 * cases
        for each in builders.exchanges(case, lambda *ends: 0.8 if ends == ("1", "3") else 0.1)
        if (each.src, each.dst) != ("2", "0")
    ]
    for i, case in enumerate(cases):
        records += launches(case, [1.0 + i] * 6)
        records += [transport(case, NASTY, evidence=NASTY), failure(case, NASTY, launch=7)]
    return written(recorded(cases, records, environment={"cpu": {"model": NASTY}}))


@pytest.fixture(params=["reference", "odd"])
def opened(request, window):
    return Opened(window, request.getfixturevalue(request.param))


@pytest.fixture
def page(window, reference):
    return Opened(window, reference)


@pytest.fixture
def odd_page(window, odd):
    return Opened(window, odd)


def test_a_page_is_drawn_without_an_error_or_a_request(opened):
    for scheme in ("dark", "light"):
        opened.media(scheme=scheme)
    messages, requests = opened.logs()
    assert messages == []
    assert [url for url in requests if not url.startswith("data:")] == [opened.address]
    assert opened.run("[...document.images].every(image => image.complete && image.naturalWidth)")
    assert opened.run("document.documentElement.classList.contains('scripted')")


def test_markup_of_a_results_file_is_shown_as_text(odd_page):
    assert NASTY in odd_page.driver.title
    assert NASTY in odd_page.driver.find_element(By.TAG_NAME, "h1").text
    assert odd_page.run("document.images.length") == odd_page.run(
        "document.querySelectorAll('figure img').length"
    )


def test_a_script_added_to_the_page_is_refused(odd_page, tmp_path):
    text = odd_page.driver.page_source
    file = tmp_path / "forged.html"
    file.write_text(text.replace("</main>", "<script>document.title = 'forged'</script></main>"))
    forged = Opened(odd_page.driver, file)
    assert forged.driver.title != "forged"
    assert any("Content Security Policy" in message for message in forged.logs()[0])


def column(table, number):
    rows = table.find_elements(By.CSS_SELECTOR, "tbody tr")
    return [row.find_elements(By.CSS_SELECTOR, "th, td")[number].text for row in rows]


def test_clicks_sort_a_table_and_the_third_restores_it(page):
    by_time = stats.summaries(load(REFERENCE)).sort_values("median_s")["backend"].tolist()
    table = page.table("time per iteration")
    before = column(table, 0)
    title = table.find_elements(By.CSS_SELECTOR, "thead th")[1]
    button = title.find_element(By.TAG_NAME, "button")
    button.click()
    assert title.get_attribute("aria-sort") == "ascending"
    assert column(table, 0) == by_time
    button.click()
    assert title.get_attribute("aria-sort") == "descending"
    assert column(table, 0) == by_time[::-1]
    button.click()
    assert title.get_attribute("aria-sort") is None
    assert column(table, 0) == before


def test_keys_sort_a_table(page):
    table = page.table("differences between backends")
    first, second = table.find_elements(By.CSS_SELECTOR, "thead th")[:2]
    page.run("arguments[0].focus()", first.find_element(By.TAG_NAME, "button"))
    page.press(Keys.TAB, Keys.ENTER)
    assert second.get_attribute("aria-sort") == "ascending"
    ratios = [float(text.strip("×")) for text in column(table, 1)]
    assert ratios == sorted(ratios)
    page.press(Keys.SPACE)
    assert second.get_attribute("aria-sort") == "descending"
    assert [float(text.strip("×")) for text in column(table, 1)] == ratios[::-1]
    with_sort = table.find_elements(By.CSS_SELECTOR, "[aria-sort]")
    assert with_sort == [second]


def test_unknown_numbers_are_sorted_last(page):
    page.run(
        "(() => { const rows = document.querySelectorAll('#time-per-iteration .data tbody tr');"
        "const cell = rows[1].cells[1];"
        "cell.dataset.value = ''; cell.textContent = '—'; })()"
    )
    table = page.table("time per iteration")
    button = table.find_elements(By.CSS_SELECTOR, "thead button")[1]
    for _ in range(2):
        button.click()
        assert column(table, 1)[-1] == "—"


def test_names_are_sorted_with_their_numbers(odd_page):
    table = odd_page.table("(transfers ≥ 1.00 MB)")
    table.find_elements(By.CSS_SELECTOR, "thead button")[1].click()
    pairs = column(table, 1)
    assert pairs == sorted(pairs)
    assert len(pairs) == 2 * 19


def test_the_pointer_shows_the_tip_of_a_pair(odd_page):
    ordinary, slow, missing = odd_page.cells((0, 1), (1, 3), (2, 0))
    actions = ActionChains(odd_page.driver)
    actions.move_to_element(ordinary).perform()
    assert odd_page.tip().splitlines() == [
        "0 → 1", "median 0.08 GB/s", "25 %: —, 75 %: — GB/s", "3 transfers, 24.0 MB",
        f"transport {NASTY}",
    ]  # fmt: skip
    actions.move_to_element(slow).perform()
    assert "slow: takes 8.0 times as long as the typical pair" in odd_page.tip()
    actions.move_to_element(missing).perform()
    assert odd_page.tip() == "2 → 0\nno transfer ≥ 1.00 MB"
    actions.move_to_element(odd_page.driver.find_element(By.TAG_NAME, "h1")).perform()
    assert odd_page.tip() == ""


def test_arrow_keys_show_the_tips_of_pairs(odd_page):
    (first,) = odd_page.cells((0, 0))
    assert first.get_attribute("tabindex") == "0"
    odd_page.run("arguments[0].focus()", first)
    pairs = []
    keys = (Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_LEFT, Keys.ARROW_UP, Keys.ARROW_UP,
            Keys.END, Keys.HOME)  # fmt: skip
    for key in keys:
        odd_page.press(key)
        pairs.append(odd_page.tip().splitlines()[0])
    assert pairs == ["0 → 1", "1 → 1", "1 → 0", "0 → 0", "0 → 0", "0 → 4", "0 → 0"]
    matrix = odd_page.driver.find_element(By.CSS_SELECTOR, "table.matrix")
    assert len(matrix.find_elements(By.CSS_SELECTOR, "[tabindex]")) == 1
    odd_page.press(Keys.ESCAPE)
    assert odd_page.tip() == ""


def test_a_tip_is_within_the_window(odd_page):
    odd_page.driver.set_window_size(500, 700)
    for cell in odd_page.cells((0, 1), (1, 4), (4, 3)):
        odd_page.run("arguments[0].scrollIntoView({block: 'end', inline: 'end'})", cell)
        ActionChains(odd_page.driver).move_to_element(cell).perform()
        box = odd_page.run(
            "(({left, top, right, bottom}) => [left, top, innerWidth - right, "
            "innerHeight - bottom])(document.querySelector('.tip').getBoundingClientRect())"
        )
        assert odd_page.tip()
        assert min(box) >= 0


CONTRASTS = """(() => {
  const luminance = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
      .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !element.checkVisibility() || element.closest("script")) continue;
    const [a, b] = [luminance(getComputedStyle(element).color), luminance(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${element.tagName} ${element.textContent.slice(0, 40)} ${ratio}`);
  }
  return found;
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_a_contrast_of_4_5(scheme, opened):
    opened.media(scheme=scheme)
    assert opened.run(CONTRASTS) == []
    page, card = map(opened.background, ("body", "figure"))
    assert (page == WHITE) == (scheme == "light")
    assert card == WHITE


def test_a_printed_page_is_white_and_without_navigation(opened):
    opened.media("print", "dark")
    assert opened.background("body") == WHITE
    assert opened.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert opened.run(CONTRASTS) == []
    opened.media()
    printed = opened.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")


def test_a_page_is_not_wider_than_a_narrow_screen(opened):
    opened.resize(400)
    assert opened.run("document.documentElement.scrollWidth") <= 400


def test_findings_with_their_evidence_are_not_cut_on_a_narrow_screen(page):
    page.resize(400)
    findings = "document.querySelector('#findings .scroll')"
    assert page.run(f"{findings}.innerText.includes('evidence: ')")
    assert page.run(f"{findings}.scrollWidth <= {findings}.clientWidth")


@pytest.mark.parametrize("n_workers", [8, 64])
def test_no_matrix_is_cut_on_a_narrow_screen(n_workers, window, recorded, written):
    case = builders.case(n_workers=n_workers)
    records = launches(case, [1.0] * 6) + builders.exchanges(case, 0.1)
    page = Opened(window, written(recorded([case], records)))
    page.resize(400)
    scroll = "document.querySelector('.matrices .scroll')"
    assert page.run(f"{scroll}.scrollWidth <= {scroll}.clientWidth")
    narrowest = "Math.min(...[...document.querySelectorAll('.matrix td')].map(e => e.clientWidth))"
    assert page.run(narrowest) > 3


@pytest.mark.parametrize("width", [1280, 400])
def test_the_first_screen_has_the_verdict_why_and_a_figure(width, page):
    page.resize(width)
    for selector in (".verdict", "#opening figure", "#opening table"):
        box = page.run(f"document.querySelector('{selector}').getBoundingClientRect().toJSON()")
        assert box["bottom"] < 800
        assert box["right"] <= width
    assert not page.run("document.querySelector('.warnings details').open")
    image = "document.querySelector('#opening img')"
    assert page.run(f"{image}.clientWidth / {image}.naturalWidth") > 0.7


@pytest.mark.parametrize("width", [1280, 400])
def test_the_first_screen_has_the_verdict_also_of_an_odd_run(width, odd_page):
    odd_page.resize(width)
    assert odd_page.run("document.querySelector('.verdict').getBoundingClientRect().bottom") < 800


def test_no_figure_is_cut_on_a_narrow_screen_and_each_can_be_enlarged(page):
    page.resize(400)
    right = "[...document.images].map(image => image.getBoundingClientRect().right)"
    assert max(page.run(right)) <= 400
    button = page.driver.find_element(By.CSS_SELECTOR, "figure button")
    button.click()
    assert page.run(right)[0] > 900
    assert page.run("document.documentElement.scrollWidth") <= 400
    button.click()
    assert max(page.run(right)) <= 400


def test_a_time_line_is_zoomed_about_its_middle_and_shown_whole_again(page):
    figure = page.driver.find_element(By.CSS_SELECTOR, "figure.timeline")
    assert figure.find_element(By.TAG_NAME, "i").get_attribute("title")
    view = figure.find_element(By.CLASS_NAME, "lanes")
    closer, farther, whole = figure.find_elements(By.TAG_NAME, "button")
    script = "[arguments[0].scrollWidth, arguments[0].scrollLeft, arguments[0].clientWidth]"
    for _ in range(3):
        closer.click()
    width, left, visible = page.run(script, view)
    assert width == pytest.approx(8 * visible, abs=8)
    assert left + visible / 2 == pytest.approx(width / 2, abs=8)
    farther.click()
    assert page.run(script, view)[0] == pytest.approx(4 * visible, abs=8)
    whole.click()
    assert page.run(script, view)[0] == visible


def test_elements_have_names_for_assistive_software(opened):
    tree = opened.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    names = {}
    for node in tree:
        if not node.get("ignored"):
            role = node["role"]["value"]
            names.setdefault(role, []).append(node.get("name", {}).get("value", ""))
    for role in ("main", "navigation", "banner", "contentinfo"):
        assert len(names[role]) == 1
    for role in ("table", "grid", "image", "link", "button", "columnheader", "rowheader"):
        assert all(names[role]), role
    assert any("→" in name and "GB/s" in name for name in names["gridcell"])
    # The corner alone has its text for a name.
    assert all(names["gridcell"])


def test_the_first_tab_leads_past_the_navigation(page):
    page.press(Keys.TAB)
    assert page.run("document.activeElement.className") == "skip"
    assert page.run("document.activeElement.getBoundingClientRect().left") >= 0
    page.press(Keys.ENTER)
    assert page.run("document.activeElement.id") == "main"


@pytest.mark.timeout(1200)
def test_a_report_of_a_thousand_workers_opens_within_3_seconds(driver, tmp_path, written):
    backends = ("tcp", "ucx", "ucx:shm", "mpi")
    run = generated(tmp_path, 4 * 10**5, N_WORKERS, backends)
    path = written(load(run))
    assert path.stat().st_size < MAX_BYTES
    # The first may pay for what the machine does besides.
    opened = [Opened(driver, path) for _ in range(3)]
    seconds = min(page.seconds for page in opened)
    print(f"{path.stat().st_size / 1e6:.1f} MB, opened in {seconds:.2f} s")
    assert seconds < MAX_OPEN_S
    cell = driver.find_element(By.CSS_SELECTOR, "table.matrix tbody td")
    ActionChains(driver).move_to_element(cell).perform()
    tip = opened[-1].tip()
    assert tip.startswith("0 … 15 → 0 … 15\n")
    assert "the slowest is" in tip
    assert "up to 16 × 16 pairs share a cell" in driver.find_element(By.TAG_NAME, "main").text
