#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens the pages of `cupool report --html` in a real browser: headless Chromium, driven through its
debugging pipe. Nothing may reach the console, the network, or a script of a hostile name; landmarks,
headings and names are there for a screen reader; tips open by keyboard; every text has a contrast of
4.5 in light and dark; and a narrow window needs no scrolling sideways. Ends with 77 (skipped) where
there is no Chromium. With --screenshots FOLDER the pages are kept as pictures, to be looked at.
Usage: page_test.py --command CUPOOL [--screenshots FOLDER]
"""
import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile

import report_examples

SKIPPED = 77
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

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


# Texts of a chart that lie on one another; tips do not count.
OVERLAPS = """(() => {
  const bad = [];
  for (const svg of document.querySelectorAll('svg')) {
    const texts = [...svg.querySelectorAll('text')].filter(t => !t.closest('.tip')).map(
      t => [t.textContent, t.getBoundingClientRect()]).filter(([, box]) => box.width > 0);
    const edge = svg.getBoundingClientRect();
    for (let i = 0; i < texts.length; ++i) {
      const [name, a] = texts[i];
      if (a.right > edge.right + 1) bad.push(name + ' leaves the picture');
      for (let k = 0; k < i; ++k) {
        const b = texts[k][1];
        if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
          bad.push(texts[k][0] + ' | ' + name);
      }
    }
  }
  return JSON.stringify(bad);
})()"""


class Browser:
    """Chromium behind its debugging pipe: messages are JSON, each ended by a zero byte."""

    def __init__(self, program, profile):
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}', program,
             "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--hide-scrollbars", f"--user-data-dir={profile}", "--remote-debugging-pipe"],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._next = 0
        self.events = []
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = None
        self._session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility", "DOM"):
            self.call(f"{domain}.enable")

    def _receive(self):
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 16)
            if not part:
                raise RuntimeError("the browser has gone")
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, parameters=None):
        self._next += 1
        number = self._next
        message = {"id": number, "method": method, "params": parameters or {}}
        if getattr(self, "_session", None):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, path, scheme, width, height=900):
        self.events = []
        self.call("Emulation.setDeviceMetricsOverride",
                  {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
        self.call("Emulation.setEmulatedMedia",
                  {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        self.call("Page.navigate", {"url": "file://" + path})
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression[:80]}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", {"type": kind, "key": key, "code": key,
                                                 "windowsVirtualKeyCode": {"Tab": 9}[key]})

    def picture(self, path):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        shot = self.call("Page.captureScreenshot",
                         {"captureBeyondViewport": True,
                          "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}})
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def close(self):
        os.close(self._write)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


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


def check_page(browser, path, page, checks, pictures):
    many = page not in ("one", "beyond")
    for scheme in ("light", "dark"):
        where = f"{page}, {scheme}"
        browser.open(path, scheme, 1280)
        if many:
            browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        check_quiet(browser, path, where, checks)
        check_reader(browser, where, checks)
        contrast = json.loads(browser.evaluate(CONTRAST))
        overlaps = json.loads(browser.evaluate(OVERLAPS))
        checks.expect(not overlaps, f"{where}: texts on one another: {overlaps[:5]}")
        checks.expect(contrast["seen"] > 50, f"{where}: {contrast['seen']} texts looked at")
        checks.expect(not contrast["bad"], f"{where}: too little contrast: {contrast['bad'][:5]}")
        if pictures:
            browser.picture(os.path.join(pictures, f"{page}-{scheme}.png"))
        if not many:
            check_keyboard(browser, where, checks)
    light = dark = None
    for scheme in ("light", "dark"):
        browser.open(path, scheme, 1280)
        colour = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        light, dark = (colour, dark) if scheme == "light" else (light, colour)
    checks.expect(light != dark, f"{page}: light and dark have the same background {light}")
    browser.open(path, "light", 390)
    wide = browser.evaluate("document.scrollingElement.scrollWidth - innerWidth")
    checks.expect(wide <= 0, f"{page}: a window of 390 pixels has to be scrolled sideways by {wide}")
    first = browser.evaluate("document.querySelector('.headline').getBoundingClientRect().bottom")
    checks.expect(first < 700, f"{page}: the headline ends {first} pixels down a small screen")
    if pictures:
        browser.picture(os.path.join(pictures, f"{page}-narrow.png"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--command", required=True)
    parser.add_argument("--screenshots", default="")
    arguments = parser.parse_args()
    program = next((found for found in map(shutil.which, BROWSERS) if found), None)
    if program is None:
        print(f"SKIPPED: no browser (looked for {', '.join(BROWSERS)}); Debian has the package chromium")
        return SKIPPED
    checks = Checks()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(program, os.path.join(folder, "profile"))
        try:
            for page, files in report_examples.write(folder).items():
                path = os.path.join(folder, f"{page}.html")
                subprocess.run([arguments.command, "report", "--html", path, *files], check=True)
                check_page(browser, path, page, checks, arguments.screenshots)
        finally:
            browser.close()
    for failure in checks.failures:
        print(failure, file=sys.stderr)
    print(f"{checks.number} checks, {len(checks.failures)} failures")
    return 1 if checks.failures or checks.number == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
