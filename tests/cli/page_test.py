#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens the pages of `cupool report --html` and `cupool diff --html` in a real browser, at 420 and 1,400
pixels, in light and dark (browser.py). No text lies on another or is cut, no figure is parted from its
unit, and tables scroll rather than the page (page_layout.js). Nothing may reach the console, the network,
or a script of a hostile name; landmarks, headings and names are there for a screen reader; tips open by
keyboard; every text has a contrast of 4.5. Ends with 77 (skipped) where there is no Chromium. With
--screenshots FOLDER the pages are kept as pictures, to be looked at.
Usage: page_test.py --command CUPOOL [--screenshots FOLDER]
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import browser as real
import report_examples

SKIPPED = 77
SCHEMES = ("light", "dark")
WIDTHS = (420, 1400)  # a telephone, a screen
FOLDER = os.path.dirname(os.path.abspath(__file__))

# Contrast of each text with what is behind it, by WCAG 2; texts on a picture's shapes have none.
CONTRAST = """(() => {
  const channel = v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = c => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const tip = at.closest && at.closest('.tip');
      if (tip) return parse(getComputedStyle(tip.querySelector('rect')).fill);
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const bad = [];
  let seen = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest('title, desc, style')) continue;
    const style = getComputedStyle(element);
    const front = parse(element.namespaceURI.endsWith('svg') ? style.fill : style.color);
    const a = light(front) + 0.05, b = light(behind(element)) + 0.05;
    ++seen;
    if (Math.max(a, b) / Math.min(a, b) < 4.5) bad.push(walker.currentNode.data.slice(0, 40));
  }
  return JSON.stringify({bad, seen});
})()"""


class Checks:
    def __init__(self):
        self.failures = []
        self.number = 0

    def expect(self, true, what):
        self.number += 1
        if not true:
            self.failures.append(what)


def check_quiet(browser, path, where, checks):
    """Nothing on the console, no dialog, no request but for the page."""
    loud = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening")
    for event in browser.events:
        checks.expect(event.get("method") not in loud, f"{where}: {json.dumps(event)[:300]}")
        if event.get("method") == "Network.requestWillBeSent":
            url = event["params"]["request"]["url"]
            checks.expect(url in ("file://" + path, "data:,"), f"{where}: a request for {url}")
    checks.expect(browser.evaluate("typeof window.hostile") == "undefined", f"{where}: a name was run as a script")
    checks.expect(browser.evaluate("document.scripts.length") == 0, f"{where}: there is a script")


def check_reader(browser, where, checks):
    """What a screen reader finds."""
    nodes = [node for node in browser.call("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")]
    roles = [node["role"]["value"] for node in nodes]
    for role in ("banner", "navigation", "main", "contentinfo"):
        checks.expect(roles.count(role) == 1, f"{where}: {roles.count(role)} landmarks {role}")
    checks.expect(browser.evaluate("document.querySelectorAll('h1').length") == 1, f"{where}: not one h1")
    checks.expect(browser.evaluate("document.documentElement.lang") == "en", f"{where}: no language")
    for node in nodes:
        focusable = any(p["name"] == "focusable" and p["value"].get("value") for p in node.get("properties", []))
        if not focusable or node["role"]["value"] == "RootWebArea":
            continue
        checks.expect(node.get("name", {}).get("value") or node["role"]["value"] in ("generic", "pre"),
                      f"{where}: a {node['role']['value']} that can have the focus has no name")
    charts = browser.evaluate("document.querySelectorAll('svg').length")
    named = browser.evaluate("[...document.querySelectorAll('svg')].filter(s => s.querySelector('title').textContent"
                             " && s.querySelector('desc').textContent).length")
    checks.expect(charts > 0 and charts == named, f"{where}: {named} of {charts} charts have title and description")
    ids = browser.evaluate("JSON.stringify([...document.querySelectorAll('[id]')].map(e => e.id))")
    ids = json.loads(ids)
    checks.expect(len(ids) == len(set(ids)), f"{where}: an id is used twice")
    dangling = browser.evaluate("[...document.querySelectorAll('[aria-labelledby]')].flatMap(e => "
                                "e.getAttribute('aria-labelledby').split(' ')).filter(i => "
                                "!document.getElementById(i)).length")
    checks.expect(dangling == 0, f"{where}: {dangling} labels that are not there")


def check_keyboard(browser, where, checks):
    """Tab reaches a tip of a chart, and the tip shows."""
    shows = ("(() => { const a = document.activeElement; return a.matches('.hit') && "
             "getComputedStyle(a.querySelector('.tip')).display !== 'none'; })()")
    before = browser.evaluate("[...document.querySelectorAll('.tip')].filter(t => "
                              "getComputedStyle(t).display !== 'none').length")
    checks.expect(before == 0, f"{where}: {before} tips show by themselves")
    browser.press("Tab")
    checks.expect(browser.evaluate("document.activeElement.matches('.skip')"), f"{where}: Tab begins elsewhere")
    for _ in range(40):
        browser.press("Tab")
        if browser.evaluate(shows):
            checks.expect(True, "")
            return
    checks.expect(False, f"{where}: 40 times Tab reach no tip")


def check_layout(browser, where, checks):
    """No text on another, none cut, none that makes the page scroll sideways."""
    with open(os.path.join(FOLDER, "page_layout.js"), encoding="utf-8") as file:
        found = json.loads(browser.evaluate(file.read()))
    checks.expect(found["texts"] > 50, f"{where}: {found['texts']} texts looked at")
    for kind in ("sideways", "overlaps", "cut", "parted", "unreachable"):
        checks.expect(not found[kind], f"{where}: {kind}: {found[kind][:5]}")


def check_finds_faults(browser, path, checks):
    """The checks of the layout see what is wrong: a page that is broken on purpose fails each."""
    for kind, fault in (
            ("sideways", "document.querySelector('.headline').style.width = '3000px'"),
            ("overlaps", "document.querySelectorAll('.tile')[1].style.marginLeft = '-150px'"),
            ("overlaps", "['x', 'y'].forEach(n => document.querySelectorAll('svg text')[1].setAttribute(n, "
                         "document.querySelectorAll('svg text')[0].getAttribute(n)))"),
            ("cut", "document.querySelector('.value').style.cssText = 'width: 10px; overflow: hidden'"),
            ("parted", "document.querySelector('.value').style.cssText = 'width: 10px; white-space: normal'"),
            ("unreachable", "document.querySelectorAll('.scroll').forEach(e => e.removeAttribute('tabindex'))")):
        browser.open(path, "light", WIDTHS[0])
        browser.evaluate(fault)
        with open(os.path.join(FOLDER, "page_layout.js"), encoding="utf-8") as file:
            found = json.loads(browser.evaluate(file.read()))
        checks.expect(found[kind], f"{kind} is not found on a page with this fault: {fault}")


def check_page(browser, path, page, checks, pictures):
    folded = page in ("ranks", "hostile", "hundred")
    backgrounds = []
    for scheme in SCHEMES:
        for width in WIDTHS:
            where = f"{page}, {scheme}, {width} pixels"
            browser.open(path, scheme, width)
            if pictures:
                browser.picture(os.path.join(pictures, f"{page}-{width}-{scheme}.png"))
            check_layout(browser, where + ", folded", checks)
            first = browser.evaluate("document.querySelector('.headline').getBoundingClientRect().bottom")
            checks.expect(first < 700, f"{where}: the headline ends {first} pixels down")
            if folded:
                few = ":nth-of-type(-n+3)" if page == "hundred" else ""
                browser.evaluate(f"document.querySelectorAll('details{few}').forEach(d => d.open = true)")
                check_layout(browser, where, checks)
            check_quiet(browser, path, where, checks)
        check_reader(browser, where, checks)
        contrast = json.loads(browser.evaluate(CONTRAST))
        checks.expect(contrast["seen"] > 50, f"{where}: {contrast['seen']} texts looked at")
        checks.expect(not contrast["bad"], f"{where}: too little contrast: {contrast['bad'][:5]}")
        backgrounds.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
        if not folded:
            check_keyboard(browser, where, checks)
    checks.expect(len(set(backgrounds)) == 2, f"{page}: light and dark have the same background {backgrounds}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--command", required=True)
    parser.add_argument("--screenshots", default="")
    arguments = parser.parse_args()
    program = real.find()
    if program is None:
        print(f"SKIPPED: no browser (looked for {', '.join(real.NAMES)}); Debian has the package chromium")
        return SKIPPED
    checks = Checks()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = real.Browser(program, os.path.join(folder, "profile"))
        try:
            for page, files in report_examples.write(folder).items():
                path = os.path.join(folder, f"{page}.html")
                subprocess.run([arguments.command, "report", "--html", path, *files], check=True)
                check_page(browser, path, page, checks, arguments.screenshots)
                if page in ("beyond", "hostile"):
                    other = os.path.join(folder, "one0.json")
                    subprocess.run([arguments.command, "diff", "--html", path, files[0], other], check=True)
                    check_page(browser, path, f"diff-{page}", checks, arguments.screenshots)
            check_finds_faults(browser, os.path.join(folder, "one.html"), checks)
        finally:
            browser.close()
    for failure in checks.failures:
        print(failure, file=sys.stderr)
    print(f"{checks.number} checks, {len(checks.failures)} failures")
    return 1 if checks.failures or checks.number == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
