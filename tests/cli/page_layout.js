// SPDX-License-Identifier: Apache-2.0
// What is wrong with the layout of the page, as JSON of lists: texts on one another, texts that are cut,
// figures parted from their units, parts that the keyboard cannot scroll, and a page that scrolls sideways.
// Texts are looked at as they are seen: within the part that scrolls them.
(() => {
  const found = {texts: 0, sideways: [], overlaps: [], cut: [], parted: [], unreachable: []};
  const say = (list, text) => { if (list.length < 20) list.push(text); };
  const short = node => node.data.trim().slice(0, 40);
  const page = document.scrollingElement;
  if (page.scrollWidth > innerWidth) say(found.sideways, `the page is ${page.scrollWidth} wide`);

  const scrolls = element => ['auto', 'scroll'].includes(getComputedStyle(element).overflowX);
  const clips = element => getComputedStyle(element).overflowX !== 'visible';
  const units = /\d[ \u00a0](?:B|[KMGTPE]iB|ns|us|ms|s|%)(?![\w])/g;
  const boxes = [];  // of lines of text, as seen
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const element = node.parentElement;
    if (!node.data.trim() || element.closest('title, desc, style, .tip, .skip')) continue;
    if (!element.checkVisibility()) continue;
    ++found.texts;
    const range = document.createRange();
    range.selectNodeContents(node);
    const lines = [...range.getClientRects()].filter(box => box.width > 0);
    let seen = {left: 0, right: innerWidth, scrolled: false};
    for (let at = element; at && at !== document.body; at = at.parentElement) {
      if (!clips(at)) continue;
      const box = at.getBoundingClientRect();
      if (scrolls(at)) {
        seen = {left: Math.max(seen.left, box.left), right: Math.min(seen.right, box.right), scrolled: true};
      } else if (lines.some(line => line.left < box.left - 1 || line.right > box.right + 1 ||
                                    line.top < box.top - 4 || line.bottom > box.bottom + 4)) {
        say(found.cut, short(node) + ' leaves its box');
      }
    }
    if (!seen.scrolled && lines.some(line => line.left < -1 || line.right > innerWidth + 1))
      say(found.cut, short(node) + ' leaves the page');
    for (const match of node.data.matchAll(units)) {
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      if (new Set([...range.getClientRects()].filter(box => box.width > 0).map(box => Math.round(box.top))).size > 1)
        say(found.parted, match[0] + ' of ' + short(node));
    }
    for (const line of lines) {
      const left = Math.max(line.left, seen.left), right = Math.min(line.right, seen.right);
      // Lines have room above and below their letters.
      const room = line.height * 0.2;
      if (right - left > 1) boxes.push({node, left, right, top: line.top + room, bottom: line.bottom - room});
    }
  }
  for (const value of document.querySelectorAll('.value')) {
    const range = document.createRange();
    range.selectNodeContents(value);
    const lines = [...range.getClientRects()];
    if (new Set(lines.map(box => Math.round(box.top))).size > 1) say(found.parted, value.textContent);
    const tile = value.closest('.tile').getBoundingClientRect();
    if (lines.some(box => box.right > tile.right)) say(found.cut, value.textContent + ' leaves its tile');
  }
  boxes.sort((a, b) => a.top - b.top);
  for (let i = 0; i < boxes.length; ++i) {
    for (let k = i + 1; k < boxes.length && boxes[k].top < boxes[i].bottom - 1; ++k) {
      if (boxes[i].left < boxes[k].right - 1 && boxes[k].left < boxes[i].right - 1)
        say(found.overlaps, short(boxes[i].node) + ' | ' + short(boxes[k].node));
    }
  }
  for (const part of document.querySelectorAll('.scroll, .chart, pre')) {
    const reachable = part.matches('[tabindex="0"]') || part.querySelector('[tabindex="0"]');
    if (part.checkVisibility() && part.scrollWidth > part.clientWidth + 1 && !reachable)
      say(found.unreachable, part.textContent.trim().slice(0, 40));
  }
  return JSON.stringify(found);
})()
