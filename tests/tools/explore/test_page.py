"""The page of the explorer: one file that loads nothing, and what it does in a browser."""

from __future__ import annotations

import base64
import gzip
import importlib.util
import json
import re
from pathlib import Path

import pytest

from stepwell.tools.explore.main import Exploration, main
from stepwell.tools.explore.page.html import page

NARROW, WIDE = 400, 1280
VIEWS = ("levels", "passes", "plan", "time", "report")
HOSTILE = "</script><img src=x onerror=document.title='bad'>"


def test_a_page_is_one_file_with_the_document_in_it(scores):
    text = scores.html()
    assert not re.findall(r"<(?:link|img|iframe)\b|\bsrc=", text.partition('<script>"use strict"')[0])
    assert "connect-src 'none'" in text and "default-src 'none'" in text
    (data,) = re.findall(r'<script type="application/octet-stream" id="document">([^<]*)</script>', text)
    assert json.loads(gzip.decompress(base64.b64decode(data))) == json.loads(scores.json())


def test_names_are_escaped():
    text = page("{}", HOSTILE)
    assert HOSTILE not in text and "&lt;/script&gt;" in text


def test_the_command_writes_the_page_of_a_document(scores, tmp_path, capsys):
    scores.write_json(tmp_path / "out.json")
    assert main([str(tmp_path / "out.json"), "--html", str(tmp_path / "out.html")]) == 0
    assert (tmp_path / "out.html").read_text() == scores.html()
    assert main([str(tmp_path / "out.json"), "--html", str(tmp_path / "no/out.html")]) == 1
    assert "cannot write" in capsys.readouterr().err


@pytest.fixture(scope="module")
def file(scores, tmp_path_factory):
    made = tmp_path_factory.mktemp("page") / "scores.html"
    scores.write_html(made)
    return made.as_uri()


@pytest.fixture(scope="module")
def shown(browser, file):
    """The page in a wide window."""
    browser.open(file, width=WIDE)
    return browser


def lines(pane, kind):
    return f"[...document.querySelectorAll('[data-pane=\"{pane}\"] .line.{kind}')].map(l => l.textContent)"


def line_with(pane, text):
    return f"[...document.querySelectorAll('[data-pane=\"{pane}\"] .line')].find(l => l.textContent.includes({json.dumps(text)}))"


def button(text):
    return f"[...document.querySelectorAll('button')].find(b => b.textContent === {json.dumps(text)} && b.offsetParent)"


def test_a_line_lights_up_in_every_pane_and_tells_its_kernel(shown):
    """A user's line is followed down to its kernels, with bytes and times."""
    pane = shown.value("document.querySelector('.pane').dataset.pane")
    shown.value(f"{line_with(pane, 'y = torch.softmax')}.click()")
    assert len(shown.value(lines(pane, "chosen"))) == 1
    assert any("nd.reduce" in line for line in shown.value(lines("nd", "marked")))
    assert any("loop.nest" in line for line in shown.value(lines("loop", "marked")))
    assert any("host.launch" in line for line in shown.value(lines("cpu", "marked")))
    assert "predicted" in shown.value("document.querySelector('.details').textContent")


def test_a_value_is_followed_to_the_program(shown):
    shown.value(f"{line_with('nd', 'nd.matmul')}.click()")
    details = shown.value("document.querySelector('.details').textContent")
    assert "nd.matmul" in details and "from mm at programs.py:" in details and "used by" in details
    pane = shown.value("document.querySelector('.pane').dataset.pane")
    assert ["x @ w" in line for line in shown.value(lines(pane, "marked"))] == [True]


def test_pointing_marks_until_the_pointer_leaves(shown):
    shown.value("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true}))")
    shown.value(f"{line_with('nd', 'nd.matmul')}.dispatchEvent(new MouseEvent('mousemove', {{bubbles: true}}))")
    assert shown.value(lines("loop", "marked"))
    shown.value("document.querySelector('[data-pane=\"nd\"] .scroll').dispatchEvent(new MouseEvent('mouseleave'))")
    assert not shown.value(lines("loop", "marked"))


def test_a_value_lights_up_its_operation_and_its_uses(shown):
    """Not the operation of the line that is pointed at."""
    name = shown.value(f"{line_with('nd', ' nd.matmul')}.querySelector('.t-name-variable').textContent")
    use = f"[...document.querySelectorAll('[data-pane=\"nd\"] .line')].filter(l => l.textContent.includes('{name}'))[1]"
    word = f"[...{use}.querySelectorAll('.t-name-variable')].find(w => w.textContent === '{name}')"
    shown.value(f"{word}.dispatchEvent(new MouseEvent('mousemove', {{bubbles: true}}))")
    marked = shown.value(lines("nd", "marked"))
    assert "nd.matmul" in marked[0] and len(marked) > 1 and all(name in line for line in marked)
    assert set(shown.value("[...document.querySelectorAll('[data-pane=\"nd\"] .value')].map(w => w.textContent)")) == {name}
    assert any("loop.contract" in line for line in shown.value(lines("loop", "marked")))
    shown.value("document.querySelector('[data-pane=\"nd\"] .scroll').dispatchEvent(new MouseEvent('mouseleave'))")


def test_lines_of_the_program_tell_their_share_of_the_time(shown):
    pane = shown.value("document.querySelector('.pane').dataset.pane")
    shares = f"[...document.querySelectorAll('[data-pane=\"{pane}\"] .price')].map(p => parseInt(p.textContent) || 0)"
    assert 99 <= sum(shown.value(shares)) <= 101
    assert "of" in shown.value(f"document.querySelector('[data-pane=\"{pane}\"] .price[title]').title")


def test_a_line_tells_its_reasons_and_what_it_is_in_the_other_graph(shown):
    pane = shown.value("document.querySelector('.pane').dataset.pane")
    shown.value(f"{line_with(pane, 'y = torch.softmax')}.click()")
    details = shown.value("document.querySelector('.details').textContent")
    assert "fused: " in details and "KiB" in details and "graph 2 (backward): " in details
    shown.value("[...document.querySelectorAll('.details button')].find(b => b.textContent === 'show').click()")
    assert shown.value("document.querySelector('header select').value") == "1"
    assert "y = torch.softmax" in shown.value(lines(pane, "chosen"))[0]
    shown.value("document.activeElement.blur()")
    shown.key("g")
    assert shown.value("document.querySelector('header select').value") == "0"


def test_keys_lead_to_every_view_and_are_listed(shown):
    for number, view in enumerate(VIEWS, 1):
        shown.key(str(number))
        assert shown.value("document.activeElement.id") == f"tab-{view}"
    shown.key("n")
    first = shown.value("document.querySelector('.passhead h2').textContent")
    shown.key("n")
    assert shown.value("document.querySelector('.passhead h2').textContent") != first
    shown.key("p")
    assert shown.value("document.querySelector('.passhead h2').textContent") == first
    shown.key("?")
    assert shown.value("document.querySelector('dialog').open")
    assert "the next pass" in shown.value("document.querySelector('dialog').textContent")
    shown.value("document.querySelector('dialog').close()")
    shown.key("1")


def test_a_rule_or_a_remark_leads_to_the_rows_that_it_is_about(shown):
    shown.key("2")
    shown.key("g")
    shown.value("[...document.querySelectorAll('.passlist button.link')].find(b => b.textContent === 'nd-canonicalize').click()")
    assert "rule cse" in shown.value("document.querySelector('.why').textContent")
    shown.value("document.querySelector('.why button.link').click()")
    found = shown.value("[...document.querySelectorAll('.difference .line.found')].map(l => [l.textContent, l.title])")
    assert any("nd.erf" in line and why == "rule cse" for line, why in found)
    shown.key("g")
    shown.key("1")


def test_keys_alone_walk_choose_and_fold(shown):
    shown.value("document.querySelector('[data-pane=\"loop\"] .scroll').focus()")
    shown.key("Home")
    shown.key("ArrowDown")
    assert "func.func" in shown.value(lines("loop", "current"))[0]
    before = shown.value("document.querySelectorAll('[data-pane=\"loop\"] .line').length")
    shown.key("ArrowLeft")
    assert shown.value("document.querySelectorAll('[data-pane=\"loop\"] .line').length") < before
    shown.key("ArrowRight")
    shown.key("Enter")
    assert len(shown.value(lines("loop", "chosen"))) == 1
    shown.value("document.activeElement.blur()")
    shown.key("/")
    assert shown.value("document.activeElement.type") == "search"


def test_the_search_leads_to_a_line_of_any_level(shown):
    shown.value("document.querySelector('header input').focus()")
    shown.type("llvm.fmuladd")
    assert "llvm:" in shown.until("document.querySelector('.found button')?.textContent")
    shown.key("Enter")
    assert "llvm.fmuladd" in shown.value(lines("llvm", "chosen"))[0]


def test_the_search_knows_places(shown, programs):
    field = "document.querySelector('header input')"
    for text, pane in ((f"programs.py:{programs.FIRST + 2}", "file:0"), ("mem:3", "mem")):
        shown.value(f"{field}.value = ''; {field}.focus()")
        shown.type(text)
        shown.key("Enter")
        assert text.rpartition(":")[2] in shown.value(lines(pane, "chosen"))[0]
    shown.value(f"{field}.value = ''; {field}.focus()")
    shown.type("nd.")
    shown.key("ArrowDown")
    shown.key("ArrowDown")
    assert shown.value("document.activeElement === document.querySelectorAll('.found button')[1]")
    shown.key("Escape")
    assert shown.value("document.querySelector('.found').hidden")


def test_passes_are_stepped_through(shown):
    shown.value("document.getElementById('tab-passes').click()")
    names = []
    for _ in range(30):
        names.append(shown.value("document.querySelector('.passhead h2').textContent"))
        shown.value("document.querySelector('[aria-label=\"next pass\"]').click()")
    names = list(dict.fromkeys(names))
    assert {"nd-to-loop", "loop-fuse", "mem-to-cpu", "to-host"} <= {name.partition("{")[0] for name in names}
    assert shown.value("document.querySelectorAll('.difference .side.come').length") > 0


def test_reasons_and_prices_are_listed_and_filtered(shown):
    shown.value("document.getElementById('tab-plan').click()")
    count = "document.querySelectorAll('.plan [aria-label^=Joins] tbody tr').length"
    everything = shown.value(count)
    assert everything > 0
    shown.value("document.querySelector('.plan input[type=search]').focus()")
    shown.type("gelu")
    assert 0 < shown.value(count) < everything
    shown.value(f"{button('gelu')}.click()")
    assert "gelu" in shown.value("document.querySelector('.details').textContent")


def test_the_graph_of_nests_has_every_join_and_every_refusal(shown, scores):
    plan = scores.data["graphs"][0]["plan"]
    arcs = sum(len(pair["second"].split(", ")) for pair in plan["pairs"])
    shown.key("3")
    picture = "document.querySelector('.plan svg')"
    assert shown.value(f"{picture}.querySelectorAll('path.arc').length") == arcs
    assert shown.value(f"{picture}.querySelectorAll('path.refused').length") == sum(not pair["fused"] for pair in plan["pairs"])
    assert all(one["label"] in shown.value(f"{picture}.textContent") for one in plan["loops"])
    shown.value(f"{picture}.querySelector('.box').dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
    assert shown.value("document.querySelector('.plan input[type=search]').value") == plan["pairs"][0]["first"]


def test_pictures_and_the_other_graph(shown, file):
    shown.value("document.getElementById('tab-time').click()")
    assert shown.value("document.querySelectorAll('.time svg').length") == 4
    assert "Peak" in shown.value("document.querySelector('.time').textContent")
    forward = shown.value("document.querySelectorAll('.time tbody tr').length")
    select = "document.querySelector('header select')"
    shown.value(f"{select}.value = 1; {select}.dispatchEvent(new Event('change'))")
    assert forward > 0 and shown.value("document.querySelectorAll('.time tbody tr').length") > 0
    shown.value(f"{select}.value = 0; {select}.dispatchEvent(new Event('change'))")
    assert shown.errors() == [] and shown.requests() == [file]


def test_the_report_is_read_and_printed(shown, scores):
    shown.value("document.getElementById('tab-levels').click(); window.dispatchEvent(new Event('beforeprint'))")
    assert shown.value("document.getElementById('view-report').hidden") is False
    graphs = len(scores.data["graphs"])
    assert shown.value("document.querySelectorAll('.report svg').length") == 3 * graphs
    assert shown.value("document.querySelectorAll('.report .box').length") == sum(len(g["kernels"]) for g in scores.data["graphs"])
    heads = [block["text"] for block in scores.data["report"] if block.get("heading", 1) > 1]
    assert shown.value("[...document.querySelectorAll('.report nav button')].map(b => b.textContent)") == heads
    shown.value("document.querySelector('.report .box').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    assert shown.value(lines("mem", "chosen"))


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_nothing_runs_out_of_the_page_and_text_can_be_read(browser, file, width, dark):
    browser.open(file, width=width, height=800, dark=dark)
    for view in VIEWS:
        browser.value(f"document.getElementById('tab-{view}').click()")
        assert browser.value("document.documentElement.scrollWidth") <= width, view
        assert browser.value(f"[...document.querySelectorAll({PICTURES!r})].every(s => s.clientWidth <= {width})"), view
        assert browser.value(UNNAMED) == [], view
        assert browser.value(FAINT) == [], view
    assert browser.errors() == []


PICTURES = ".time svg, .plan [aria-label^=Nests] svg"
"""Those that are made for the width of the page; the graph of what runs is scrolled."""

UNNAMED = """[...document.querySelectorAll('button, input, select, [tabindex="0"]')].filter((e) => e.offsetParent &&
  !(e.getAttribute('aria-label') || e.textContent.trim() || document.querySelector(`label[for="${e.id}"]`))).map((e) => e.outerHTML)"""
"""What can be reached by keys and has no name for a screen reader."""

FAINT = """(() => {
  const parts = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = (c) => { const [r, g, b] = parts(c).map((v) => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
    return .2126 * r + .7152 * g + .0722 * b; };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (parts(c)[3] !== 0) return c; } return 'rgb(255, 255, 255)'; };
  const found = new Set();
  for (const e of document.querySelectorAll('main *, header *')) {
    if (!e.offsetParent || ![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
    if ((a + .05) / (b + .05) < 4.5) found.add(`${e.tagName}.${e.className}: ${e.textContent.slice(0, 30)}`);
  }
  return [...found];
})()"""
"""Texts with less contrast to what is behind them than WCAG 2.1 asks for."""


AXE = importlib.util.find_spec("axe_playwright_python")
"""A package that brings axe-core, the checker of accessibility (pip install --no-deps axe-playwright-python)."""


@pytest.mark.skipif(AXE is None, reason="axe-playwright-python, which brings axe-core, is not installed")
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_serious(browser, file, dark):
    browser.open(file, width=WIDE, dark=dark)
    assert AXE is not None and AXE.origin is not None
    browser.value(Path(AXE.origin).with_name("axe.min.js").read_text() + ";0")
    for view in VIEWS:
        browser.value(f"document.getElementById('tab-{view}').click()")
        found = browser.value("axe.run().then(r => r.violations.map(v => `${v.impact}: ${v.help}: ${v.nodes[0].html}`))")
        assert [one for one in found if one.startswith(("serious", "critical"))] == [], view


def test_text_of_a_program_is_never_markup(browser, scores, tmp_path):
    data = json.loads(scores.json())
    level = next(one for one in data["graphs"][0]["levels"] if one["name"] == "loop")
    data["texts"][level["text"]] = HOSTILE + "\n" + data["texts"][level["text"]]
    data["name"] = data["graphs"][0]["title"] = HOSTILE
    file = tmp_path / "hostile.html"
    Exploration(data).write_html(file)
    browser.open(file.as_uri())
    for view in VIEWS:
        browser.value(f"document.getElementById('tab-{view}').click()")
    assert browser.value("document.querySelectorAll('img').length") == 0
    assert browser.value("document.title") == f"stepwell: {HOSTILE}"


def test_of_a_long_line_the_letters_in_sight_have_colours(browser, scores, tmp_path):
    data = json.loads(scores.json())
    level = next(one for one in data["graphs"][0]["levels"] if one["name"] == "loop")
    data["texts"][level["text"]] = " ".join(f"%v{k}" for k in range(20_000)) + "\n" + data["texts"][level["text"]]
    Exploration(data).write_html(tmp_path / "long.html")
    browser.open((tmp_path / "long.html").as_uri())
    assert browser.value("document.querySelectorAll('*').length") < 5000
    words = "[...document.querySelectorAll('[data-pane=\"loop\"] .line .t-name-variable')].map(w => w.textContent)"
    assert "%v0" in browser.value(words) and "%v10000" not in browser.value(words)
    browser.value("(box => { box.scrollLeft = box.scrollWidth / 2; })(document.querySelector('[data-pane=\"loop\"] .scroll'))")
    assert "%v0" not in browser.until(f"({words}).some(w => /^%v\\d{{5}}$/.test(w)) && {words}")
    assert browser.errors() == []


def test_a_program_without_graphs_has_a_page(browser, scores, tmp_path):
    data = {**scores.data, "graphs": [], "eager": [{"what": "the line", "why": HOSTILE}]}
    Exploration(data).write_html(tmp_path / "none.html")
    browser.open((tmp_path / "none.html").as_uri())
    assert browser.value("document.querySelector('main').textContent") == f"No graph was compiled.the line: {HOSTILE}"
    browser.key("/")
    browser.key("Escape")
    assert browser.errors() == []


@pytest.mark.long
def test_a_large_page_opens_soon_and_draws_only_what_is_seen(browser, block, tmp_path):
    file = tmp_path / "block.html"
    block.write_html(file)
    browser.open(file.as_uri())
    select = "document.querySelector('header select')"
    browser.value(f"{select}.value = 1; {select}.dispatchEvent(new Event('change'))")
    assert browser.value("document.querySelectorAll('.line').length") < 500
    browser.value("(() => { const s = document.querySelector('[data-pane=\"cpu\"] .scroll'); s.scrollTop = s.scrollHeight; })()")
    last = "[...document.querySelectorAll('[data-pane=\"cpu\"] .line')].at(-1)?.textContent.trim()"
    assert browser.until(f"{last}.endsWith('}}')")
