"""The HTML report in a real Chromium: what a person sees, clicks and types, and what the page must never do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import browser as chrome
from support import small_models as small
from support.assets import ROOT
from support.reports import HOSTILE, Report, glm_5_report, hostile_report, long_report, offline_report
from support.speed import slack

from ggufmap.report.html import html_page
from ggufmap.report.patterns import size

if chrome.chromium_path() is None:
    pytest.skip("there is no Chromium (Debian: apt-get install chromium)", allow_module_level=True)

from axe_playwright_python.sync_playwright import Axe

SHOTS = ROOT / ".assets" / "screenshots"
VIEWS: dict[str, dict[str, Any]] = {"light": {}, "dark": {"dark": True}, "phone": {"phone": True}}


@pytest.fixture(scope="module")
def browser() -> Iterator[chrome.Browser]:
    with chrome.browser() as found:
        yield found


@pytest.fixture(scope="module")
def reports(gemma: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    folder = tmp_path_factory.mktemp("reports")
    good = offline_report(small.write_llama(folder / "good.gguf"))
    tensors = small.without(small.llama_tensors(8), "blk.3.attn_k.weight", "blk.3.attn_v.weight")
    tensors += [small.tensor("blk.1.ffn_gate_exps.weight", 4), small.tensor("blk.5.odd.weight", 4)]
    bad = offline_report(small.write_llama(folder / "bad.gguf", small.llama_metadata(8), tensors))
    traced = {**good, "target": {**good["target"], "tensor_parallel": 2}}
    traced["memory"] = [
        {"tensor_parallel": 1, "target": 4_000_000, "draft": 1_000_000, "packed": 0, "cut": 0, "problem": None},
        {"tensor_parallel": 2, "target": 2_000_000, "draft": 500_000, "packed": 900_000, "cut": 0, "problem": None},
        {"tensor_parallel": 16, "target": 300_000, "draft": 60_000, "packed": 0, "cut": 3, "problem": None},
        {"tensor_parallel": 64, "target": None, "draft": None, "packed": 0, "cut": 0, "problem": "4 heads, 64 ranks"},
    ]
    rows = {"basis": "gguf-py's names", "rows": "ROWS = (\n    block('a', '<b>'),\n)\n"}
    return {
        "good": good,
        "inferred": {**good, "ok": False, "serve": None, "inferred": rows},
        "remote": {**good, "serve": None},
        "bad": bad,
        "traced": traced,
        "hostile": hostile_report(good),
        "long": long_report(good, 60_000),
        "glm-5": glm_5_report(folder / "glm"),
        "gemma": offline_report(gemma),
    }


@pytest.fixture(scope="module")
def pages(reports: dict[str, Report], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, report in reports.items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(html_page(report), encoding="utf-8")
    return found


def rows(page: chrome.Page) -> list[str]:
    """The tensors in sight in the table."""
    return page.locator("#table .row .c-tensor > bdi").all_text_contents()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["glm-5", "gemma"])
def test_screenshots(browser: chrome.Browser, pages: dict[str, Path], name: str, view: str) -> None:
    """Kept to be looked at; the page is never wider than its window."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    with browser.open(pages[name], **VIEWS[view]) as page:
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.screenshot(path=SHOTS / f"{name}-{view}.png", full_page=True)
    assert (SHOTS / f"{name}-{view}.png").stat().st_size > 20_000


def test_dark_mode_follows_the_system(browser: chrome.Browser, pages: dict[str, Path]) -> None:
    shade = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number).reduce((a, b) => a + b)"
    with browser.open(pages["good"]) as page:
        light = page.evaluate(shade)
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(shade) < 120 < 600 < light


@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
def test_hostile_names_stay_text(browser: chrome.Browser, pages: dict[str, Path], phone: bool) -> None:
    with browser.open(pages["hostile"], phone=phone) as page:
        assert page.evaluate("[document.scripts.length, document.images.length, window.hacked ?? null]") == [2, 0, None]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        shown = page.evaluate("document.body.innerText")
        assert "<script>window.hacked = 1</script>" in shown
        assert "\\u202egpj.evil\\u202c" in shown and "nul\\x00bell\\x07esc\\x1b[31m\\x7f\\x9b" in shown
        assert not re.search("[\u202a-\u202e\u2066-\u2069\u2028\u2029\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)
        for details in page.locator("details").all():
            details.evaluate("one => one.open = true")
        page.locator("#search").fill("<!--")
        assert rows(page) == ["<!--<script>"]
        page.locator("#table .row").first.click()
        assert "<!--<script>" in page.locator("#sheet").inner_text()
        page.keyboard.press("Escape")
        page.select_option("#map-order", "part")
        for by in ("module", "storage", "role"):
            page.select_option("#map-colour", by)
        assert page.evaluate("[document.scripts.length, window.hacked ?? null]") == [2, None]


def test_the_policy_stops_what_is_injected(browser: chrome.Browser, pages: dict[str, Path]) -> None:
    """Were there a way to put markup on the page, it still would not run or load anything."""
    with pytest.raises(AssertionError, match="Content Security Policy"), browser.open(pages["good"]) as page:
        page.evaluate(
            """() => {
                const script = document.createElement('script');
                script.append('window.hacked = 1');
                document.body.append(script);
                const image = document.createElement('img');
                image.src = 'http://127.0.0.1:9/x.png';
                document.body.append(image);
            }"""
        )
        page.wait_for_timeout(100)
        assert page.evaluate("window.hacked ?? null") is None
        markup = "try { document.body.innerHTML = '<b>x</b>'; return 'set' } catch (e) { return e.name }"
        assert page.evaluate(f"(() => {{ {markup} }})()") == "TypeError"


@pytest.mark.parametrize(
    ("name", "view"), [("bad", "light"), ("traced", "dark"), ("gemma", "phone"), ("gemma", "light")]
)
def test_accessible_by_axe(browser: chrome.Browser, pages: dict[str, Path], name: str, view: str) -> None:
    """axe-core's rules for WCAG 2.2 A and AA, contrast among them, with all details open."""
    with browser.open(pages[name], bypass_csp=True, **VIEWS[view]) as page:
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
        found = Axe().run(page, options=options).response["violations"]
        assert [(x["id"], x["help"], [node["html"][:200] for node in x["nodes"]][:4]) for x in found] == []


def test_problems_come_first_with_cause_and_remedy(browser: chrome.Browser, pages: dict[str, Path]) -> None:
    with browser.open(pages["bad"]) as page:
        assert page.locator("#verdict").inner_text() == "✗ does not fit"
        assert page.locator("main > section").first.get_attribute("id") == "problems"
        cards = page.locator("#problem-list .problem").all_inner_texts()
        assert len(cards) == 4
        assert "missing" in cards[0] and "blk.3.attn_k.weight is not in the file" in cards[0]
        assert all("Cause" in card and "Remedy" in card and "docs/" in "".join(cards) for card in cards)
        assert any("a mixture-of-experts tensor" in card and "dense models" in card for card in cards)
        assert "No command" in page.locator("#serve-box").inner_text()
        page.locator("#problem-list button").first.click()
        assert sorted(rows(page)) == ["blk.1.ffn_gate_exps.weight", "blk.5.odd.weight"]


def test_a_hole_and_an_odd_type_stand_out(browser: chrome.Browser, pages: dict[str, Path]) -> None:
    with browser.open(pages["bad"]) as page:
        assert "2 tensors missing" in page.locator("#matrix-note").inner_text()
        labels = page.locator("#matrix .missing").evaluate_all(
            "all => all.map((one) => one.getAttribute('aria-label'))"
        )
        assert [label.split(":")[0] for label in labels] == ["block 3, attn_k, missing", "block 3, attn_v, missing"]
        assert "repeating-linear-gradient" in page.locator("#matrix .missing").first.evaluate(
            "one => getComputedStyle(one).backgroundImage"
        )
        page.locator("#matrix .missing").first.hover()
        assert "blk.3.attn_k.weight is not in the file" in page.locator("#tip").inner_text()


def test_the_matrix_by_keyboard(browser: chrome.Browser, pages: dict[str, Path]) -> None:
    with browser.open(pages["glm-5"]) as page:
        page.locator("#matrix .cell[tabindex='0']").focus()
        focused = "document.activeElement.getAttribute('aria-label')"
        assert page.evaluate(focused).startswith("block 0, attn_norm, F32")
        for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown", "ArrowDown"):
            page.keyboard.press(key)
        assert page.evaluate(focused).startswith("block 3, attn_q_a, Q4_K")
        page.keyboard.press("Enter")
        assert "blk.3.attn_q_a.weight" in page.locator("#sheet h2").inner_text()
        page.keyboard.press("Escape")
        assert page.evaluate(focused).startswith("block 3, attn_q_a")
        assert page.locator("#matrix .line").count() == 80
        assert "79 blocks of 3 kinds: 0–2; 3–77; 78 (draft)." in page.locator("#matrix-note").inner_text()


def test_the_map_by_keyboard(browser: chrome.Browser, pages: dict[str, Path]) -> None:
    """Block, part, tensor, and back."""
    with browser.open(pages["gemma"]) as page:
        page.locator("#map-tiles .tile").first.focus()
        focused = "document.activeElement.getAttribute('aria-label')"
        assert page.evaluate(focused).startswith("token_embd, 178 MB, 72 % of the file, Q8_0")
        page.keyboard.press("ArrowRight")
        block = page.evaluate(focused)
        assert re.match(r"block \d+, .* of the file, mostly ", block)
        page.keyboard.press("Enter")
        assert page.locator("#crumbs [aria-current]").inner_text().startswith(block.split(",")[0])
        assert page.evaluate(focused).startswith("ffn_")
        page.keyboard.press("Enter")
        assert re.match(r"blk\.\d+\.ffn_\w+\.weight", page.locator("#sheet h2").inner_text())
        page.keyboard.press("Escape")
        page.locator("#map-tiles .tile").first.focus()
        page.keyboard.press("Escape")
        assert page.locator("#crumbs button").count() == 0


def test_the_map_has_every_byte(browser: chrome.Browser, pages: dict[str, Path], reports: dict[str, Report]) -> None:
    """Tiles cover the map in the ratio of the bytes, whatever they are grouped by; the legend adds up."""
    total = sum(entry["bytes"] for entry in reports["gemma"]["assignments"])
    with browser.open(pages["gemma"]) as page:
        for order, tiles in (("block", 20), ("part", 15)):
            page.select_option("#map-order", order)
            boxes = page.locator("#map-tiles .tile").evaluate_all(
                "all => all.map((one) => [parseFloat(one.style.width) + 2, parseFloat(one.style.height) + 2])"
            )
            assert len(boxes) == tiles
            width, height = page.locator("#map").evaluate("map => [map.clientWidth, map.clientHeight]")
            assert sum(w * h for w, h in boxes) == pytest.approx(width * height, rel=0.01)
            embedding = reports["gemma"]["assignments"][1]
            assert embedding["tensor"] == "token_embd.weight"
            assert boxes[0][0] * boxes[0][1] == pytest.approx(width * height * embedding["bytes"] / total, rel=0.01)
        wanted_by = {
            "type": "Q8_0180 MB",
            "module": "embed_tokens178 MB",
            "storage": "dense247 MB",
            "role": "target247 MB",
        }
        for by, wanted in wanted_by.items():
            page.select_option("#map-colour", by)
            assert wanted in page.locator("#map-legend").text_content().replace("\xa0", " ")


def test_search_filters_and_sorting(browser: chrome.Browser, pages: dict[str, Path]) -> None:
    with browser.open(pages["gemma"]) as page:
        assert page.locator("#found").inner_text() == "236 tensors"
        page.keyboard.press("/")
        page.keyboard.type("BLK.1.attn_q")
        assert rows(page) == ["blk.1.attn_q.weight", "blk.1.attn_q_norm.weight"]
        assert page.locator("#found").inner_text() == "2 of 236 tensors"
        page.locator("#search").fill(r"^blk\.1\d\.ffn_(up|down)")
        assert rows(page) == []
        assert "Nothing matches" in page.locator("#table").inner_text()
        page.locator("#regex").check()
        assert page.locator("#found").inner_text() == "16 of 236 tensors"
        page.locator("#search").fill("blk.(")
        assert "Not a regular expression" in page.locator("#search-error").inner_text()
        assert page.locator("#search").get_attribute("aria-invalid") == "true"
        page.locator("#reset").click()
        page.select_option("#filter-type", "Q8_0")
        assert page.locator("#found").inner_text().endswith(" of 236 tensors")
        page.locator("#table .heads button", has_text="Size").click()
        assert rows(page)[0] == "token_embd.weight"
        assert page.locator("#table [aria-sort=descending]").inner_text().startswith("Size")
        page.locator("#reset").click()
        page.locator("#table .heads button", has_text="Tensor").click()
        assert rows(page)[:2] == ["blk.0.attn_k.weight", "blk.0.attn_k_norm.weight"]
        page.locator("#search").fill("attn_k.weight")
        assert rows(page)[1:3] == ["blk.1.attn_k.weight", "blk.2.attn_k.weight"]  # and then 10


def test_the_table_by_keyboard(browser: chrome.Browser, pages: dict[str, Path]) -> None:
    with browser.open(pages["gemma"]) as page:
        page.locator("#table .grid").focus()
        for key in ("ArrowDown", "ArrowDown", "PageDown", "End", "ArrowUp", "Home", "ArrowDown"):
            page.keyboard.press(key)
        assert page.locator("#table .grid").get_attribute("aria-activedescendant") == "row-1"
        second = rows(page)[1]
        page.keyboard.press("Enter")
        assert page.locator("#sheet h2").inner_text() == second
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.className") == "grid"


def test_tab_reaches_everything_in_order(browser: chrome.Browser, pages: dict[str, Path]) -> None:
    """One stop each for map, matrix and table, however many tiles, cells and rows they have."""
    with browser.open(pages["glm-5"]) as page:
        seen = []
        for _ in range(60):
            page.keyboard.press("Tab")
            seen.append(page.evaluate("document.activeElement.closest('section, nav, header')?.id ?? ''"))
            if page.evaluate("document.activeElement.closest('#detail-list') !== null"):
                break
        order = [name for no, name in enumerate(seen) if name and name not in seen[:no]]
        assert [name for name in order if name != "crumbs"] == ["serve", "bytes", "blocks", "mapping", "details"]
        assert len(seen) < 45


def test_every_tensor_and_every_checkpoint_tensor(
    browser: chrome.Browser, pages: dict[str, Path], reports: dict[str, Report]
) -> None:
    """What was written short is unpacked to what the JSON report says."""
    wanted = [(e["tensor"], name) for e in reports["glm-5"]["assignments"] for name in e["checkpoint"]]
    with browser.open(pages["glm-5"]) as page:
        page.select_option("#table-rows", "checkpoint")
        assert page.locator("#found").inner_text() == f"{len(wanted):,} rows"
        page.locator("#search").fill("layers.77.mlp.experts.255.")
        found = page.locator("#table .row .c-target > bdi").all_text_contents()
        assert sorted(found) == sorted(name for _, name in wanted if "layers.77.mlp.experts.255." in name)


@pytest.mark.parametrize(("name", "each"), [("glm-5", "checkpoint"), ("long", "tensor")])
def test_sixty_thousand_rows_without_lag(
    browser: chrome.Browser, pages: dict[str, Path], name: str, each: str, record_property: Any
) -> None:
    """From a keystroke until the browser has painted: below 100 ms. Sorting below 400, scrolling below 50."""
    measure = """async ([id, values, event]) => {
        const box = document.getElementById(id), took = [];
        const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
        for (const value of values) {
            await painted();
            const started = performance.now();
            if (event === 'scroll') box.scrollTop = value;
            else if (event === 'click') box.querySelectorAll('.heads button')[value].click();
            else { box.value = value; box.dispatchEvent(new Event('input')); }
            await painted();
            took.push(performance.now() - started);
        }
        return took;
    }"""
    with browser.open(pages[name]) as page:
        page.select_option("#table-rows", each)
        assert int(page.locator("#found").inner_text().split()[0].replace(",", "")) > 59_000
        typed = page.evaluate(
            measure, ["search", ["b", "bl", "blk", "blk.7", "blk.77", "blk.77.", "blk", "b", ""], "input"]
        )
        page.locator("#regex").check()
        regex = page.evaluate(measure, ["search", [r"blk\.7", r"blk\.7\d", r"blk\.7\d\.(ffn|part)", ""], "input"])
        sort = page.evaluate(measure, ["table", [3, 0, 1, 3], "click"])
        scroll = page.evaluate(measure, ["table", list(range(5000, 2_000_000, 100_000)), "scroll"])
        assert page.locator("#table .row").count() < 60
    found = {"typing": typed, "regex": regex, "sorting": sort, "scrolling": scroll}
    middle = {key: sorted(took)[len(took) // 2] for key, took in found.items()}
    SHOTS.mkdir(parents=True, exist_ok=True)
    (SHOTS / f"latency-{name}.json").write_text(json.dumps({k: [round(x, 1) for x in v] for k, v in found.items()}))
    for key, milliseconds in middle.items():
        record_property(f"{key}_ms", milliseconds)
    # Of several tries the best: the machine is not this test's alone.
    best = {"typing": min(typed[:6]), "regex": min(regex[:3]), "sorting": min(sort), "scrolling": min(scroll)}
    limits = {"typing": 100, "regex": 100, "sorting": 400, "scrolling": 50}
    late = slack()
    assert all(best[key] < limits[key] * late for key in limits), (best, late)


def test_memory_of_the_sizes(browser: chrome.Browser, pages: dict[str, Path]) -> None:
    with browser.open(pages["traced"]) as page:
        lines = page.locator("#memory tbody tr").all_inner_texts()
        shown = [" ".join(line.split()) for line in lines]
        assert shown == [
            "TP 1 5 MB 4 MB 1 MB ✓ legal",
            "TP 2 2.5 MB 2 MB 500 kB ✓ legal 900 kB packed",
            "TP 16 360 kB 300 kB 60 kB ! cuts block edges 3 tensors would end inside a block and are dequantised",
            "TP 64 – ✗ not possible 4 heads, 64 ranks",
        ]
        assert page.locator("#memory tr.traced th").inner_text() == "TP 2"


def test_what_is_not_known_is_said(browser: chrome.Browser, pages: dict[str, Path]) -> None:
    """Without a trace, without problems, without templates."""
    with browser.open(pages["good"]) as page:
        assert "vLLM was not asked" in page.locator("#memory-box").inner_text()
        assert "✓ none" in page.locator("#problem-list").inner_text()
        assert page.locator("#verdict").inner_text() == "✓ fits by the rows"
        assert "not traced" in page.locator("#counts").inner_text()
        assert page.locator("#filter-problem").is_disabled()


def test_the_command_is_copied(browser: chrome.Browser, pages: dict[str, Path], reports: dict[str, Report]) -> None:
    """With the clipboard's interface, without it by the old command, and without either it is left selected."""
    command = reports["gemma"]["serve"]
    with browser.open(pages["gemma"], permissions=["clipboard-read", "clipboard-write"]) as page:
        button, status = page.locator("#serve-box button"), page.locator("#serve-box [role=status]")
        button.focus()
        page.keyboard.press("Enter")
        page.locator("#serve-box [role=status]", has_text="Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == command
        page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        taken = "const x = document.activeElement; window.taken = x.value.slice(x.selectionStart, x.selectionEnd)"
        page.evaluate(f"() => {{ document.addEventListener('copy', () => {{ {taken} }}) }}")
        status.evaluate("one => (one.textContent = '')")
        button.click()
        assert status.inner_text() == "Copied" and page.evaluate("window.taken") == command
        page.evaluate("document.execCommand = () => false")
        button.click()
        assert "Ctrl+C" in status.inner_text() and page.evaluate("String(getSelection())") == command


def test_inferred_rows_are_a_problem_and_can_be_taken(
    browser: chrome.Browser, pages: dict[str, Path], reports: dict[str, Report]
) -> None:
    with browser.open(pages["inferred"], permissions=["clipboard-read", "clipboard-write"]) as page:
        assert "gguf-py's names" in page.locator("#problem-list .problem").inner_text()
        page.locator("#detail-list summary").first.click()
        rows = reports["inferred"]["inferred"]["rows"]
        assert page.locator("#detail-list pre").inner_text() == rows
        page.locator("#detail-list button").first.click()
        page.locator("#detail-list [role=status]", has_text="Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == rows


def test_a_file_that_is_not_at_hand_has_no_command(browser: chrome.Browser, pages: dict[str, Path]) -> None:
    with browser.open(pages["remote"]) as page:
        assert "has to be downloaded first" in page.locator("#serve-box").inner_text()


def test_paper(browser: chrome.Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    """Printed, the controls go and the details are open; of a long table the first rows."""
    with browser.open(pages["long"]) as page:
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        assert not page.locator("#search").is_visible() and not page.locator(".sections").is_visible()
        assert page.locator("details:not([open])").count() == 0
        assert page.locator("#table .row").count() == 500
        assert "The first 500 of 60,000 rows." in page.locator("#table").inner_text()
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        page.emulate_media(media="screen")
        assert page.locator("#table .row").count() < 60
    with browser.open(pages["gemma"]) as page:
        page.pdf(path=tmp_path / "gemma.pdf")
    assert (tmp_path / "gemma.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("name", ["glm-5", "hostile"])
def test_a_phone(browser: chrome.Browser, pages: dict[str, Path], reports: dict[str, Report], name: str) -> None:
    """No sideways scrolling of the page, text of a readable size, controls that a thumb hits."""
    with browser.open(pages[name], phone=True) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        heights = page.locator("#mapping .bar button, #mapping .bar select, #search").evaluate_all(
            "all => all.filter((one) => one.offsetParent).map((one) => one.offsetHeight)"
        )
        assert len(heights) >= 8 and min(heights) >= 40
        page.locator("#table .row").first.tap()
        assert page.locator("#sheet").is_visible()
        assert page.evaluate("document.getElementById('sheet').getBoundingClientRect().right <= innerWidth")
        page.locator("#sheet button", has_text="Close").tap()
        page.select_option("#table-sort", "bytes down")
        sizes = page.locator("#table .row .c-bytes").all_text_contents()
        assert sizes[0] == size(max(entry["bytes"] for entry in reports[name]["assignments"]))


def test_hostile_names_are_all_there(browser: chrome.Browser, pages: dict[str, Path]) -> None:
    with browser.open(pages["hostile"]) as page:
        page.select_option("#filter-problem", "any")
        assert page.locator("#found").inner_text().startswith(f"{len(HOSTILE)} of ")
