// Markdown as models write it, built as DOM nodes: headings, lists, tables, fenced code, quotes, rules, paragraphs.
// Raw HTML stays text. A line break in a paragraph is a line break, as in a chat. There is no indented code (models indent
// lists at will) and no heading by underlining (a dash would make the line above jump while it streams).

import { h, patch } from './dom.js';
import { highlight, languageName } from './highlight.js';
import { inline } from './inline.js';

/** Deeper than this, quotes and lists are text. */
const MAX_DEPTH = 12;

const FENCE = /^( *)(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?: (.*))?$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const ITEM = /^( *)([-+*]|\d{1,9}[.)])( +(?=\S)| *$)/;
const QUOTE = /^ {0,3}> ?/;

/** The nodes for a whole text. */
export function render(text) {
  const fragment = document.createDocumentFragment();
  for (const block of parse(toLines(text), 0)) fragment.append(build(block, false));
  return fragment;
}

/** Renders a text that grows, and builds again only the block at its end. */
export class Streaming {
  constructor(element) {
    this.element = element;
    this.text = '';
    this.settled = 0; // characters of the blocks that no further text can change
    this.kept = 0; // nodes of those blocks
  }

  /** Shows `text`; `done`: nothing will follow. What it shows then is what `render` gives. */
  update(text, done) {
    if (!text.startsWith(this.text)) {
      this.settled = 0;
      this.kept = 0;
    }
    this.text = text;
    const tail = toLines(text.slice(this.settled));
    const blocks = parse(tail, 0);
    const fresh = document.createDocumentFragment();
    blocks.forEach((block, index) => fresh.append(build(block, !done && index === blocks.length - 1)));
    patch(this.element, fresh, this.element.childNodes[this.kept] ?? null);
    this.settle();
  }

  /** Only whole lines tell for sure where a block ends: `1` may yet become `1. more of the list`. */
  settle() {
    const whole = this.text.slice(this.settled, this.text.lastIndexOf('\n') + 1);
    const lines = whole.split('\n');
    const blocks = parse(toLines(whole), 0);
    if (blocks.length < 2) return;
    this.kept += blocks.length - 1;
    for (const line of lines.slice(0, blocks.at(-1).line)) this.settled += line.length + 1;
  }
}

function toLines(text) {
  return text.split('\n').map((line) => {
    const plain = line.endsWith('\r') ? line.slice(0, -1) : line;
    return plain.replace(/^[ \t]+/, (space) => space.replaceAll('\t', '    '));
  });
}

const indent = (line) => line.length - line.trimStart().length;
const blank = (line) => line.trim() === '';

function cells(line) {
  let text = line.trim();
  if (text.startsWith('|')) text = text.slice(1);
  if (text.endsWith('|') && !text.endsWith('\\|')) text = text.slice(0, -1);
  return text.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll('\\|', '|'));
}

function tableAt(lines, at) {
  const next = lines[at + 1];
  if (next === undefined || !lines[at].includes('|') || !/^[\s|:-]+$/.test(next) || !next.includes('-')) return null;
  const columns = cells(next);
  const head = cells(lines[at]);
  if (head.length !== columns.length || !columns.every((cell) => /^:?-+:?$/.test(cell))) return null;
  return { head, aligns: columns.map((cell) => (cell.endsWith(':') ? (cell[0] === ':' ? 'center' : 'right') : '')) };
}

/** Whether a paragraph ends before this line. */
function interrupts(lines, at) {
  const line = lines[at];
  const item = ITEM.exec(line);
  if (item) return item[3] !== '' && item[0].length < line.length && !/^(?!1[.)])\d/.test(item[2]);
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || tableAt(lines, at) !== null;
}

/** Blocks as plain objects; `line` is where each begins. */
function parse(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (blank(lines[at])) {
      at += 1;
      continue;
    }
    const [block, next] = parseBlock(lines, at, depth);
    block.line = at;
    blocks.push(block);
    at = next;
  }
  return blocks;
}

function parseBlock(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return parseFence(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    const text = (heading[2] ?? '').trim().replace(/(^| )#+$/, '');
    return [{ type: 'heading', level: heading[1].length, text: text.trim() }, at + 1];
  }
  if (RULE.test(line)) return [{ type: 'rule' }, at + 1];
  if (depth < MAX_DEPTH) {
    if (QUOTE.test(line)) return parseQuote(lines, at, depth);
    if (ITEM.test(line)) return parseList(lines, at, depth);
  }
  const table = tableAt(lines, at);
  if (table) return parseTable(lines, at, table);
  let end = at + 1;
  while (end < lines.length && !blank(lines[end]) && !(depth < MAX_DEPTH && interrupts(lines, end))) end += 1;
  const text = lines.slice(at, end).map((each) => each.trimStart()).join('\n');
  return [{ type: 'paragraph', text: text.trimEnd() }, end];
}

function parseFence(lines, at, [, space, marks, info]) {
  const code = [];
  let end = at + 1;
  let closed = false;
  for (; end < lines.length; end += 1) {
    const text = lines[end].trim();
    if (text.length >= marks.length && text === marks[0].repeat(text.length)) {
      closed = true;
      end += 1;
      break;
    }
    code.push(lines[end].slice(Math.min(space.length, indent(lines[end]))));
  }
  return [{ type: 'code', language: info.trim().split(/[\s,{]/)[0], code, closed, mark: marks[0] }, end];
}

function parseQuote(lines, at, depth) {
  const inner = [];
  let fenced = false;
  let end = at;
  for (; end < lines.length; end += 1) {
    const quoted = QUOTE.exec(lines[end]);
    const text = quoted ? lines[end].slice(quoted[0].length) : lines[end];
    // A paragraph may go on without its mark.
    if (!quoted && (fenced || blank(text) || blank(inner.at(-1)) || interrupts(lines, end))) break;
    if (FENCE.test(text)) fenced = !fenced;
    inner.push(text);
  }
  return [{ type: 'quote', blocks: parse(inner, depth + 1) }, end];
}

function parseList(lines, at, depth) {
  const [, , first] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first);
  const kind = (marker) => (/\d/.test(marker) ? marker.at(-1) : marker);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || kind(item[2]) !== kind(first) || RULE.test(lines[end])) break;
    const [whole, space, marker, gap] = item;
    const content = gap.length > 4 || whole.length === lines[end].length ? space.length + marker.length + 1 : whole.length;
    // Models indent by two where the marker is three wide: that is meant to belong to the item.
    const least = Math.min(content, space.length + 2);
    const inner = [lines[end].slice(content)];
    let blanks = 0;
    let fenced = FENCE.test(inner[0]);
    for (end += 1; end < lines.length; end += 1) {
      const line = lines[end];
      if (blank(line)) {
        blanks += 1;
        continue;
      }
      const deep = indent(line) >= least;
      if (!deep && (blanks > 0 || fenced || ITEM.test(line) || interrupts(lines, end))) break;
      const text = line.slice(Math.min(content, indent(line)));
      if (FENCE.test(text)) fenced = !fenced;
      for (; blanks > 0; blanks -= 1) inner.push('');
      inner.push(text);
    }
    items.push(parse(inner, depth + 1));
  }
  return [{ type: 'list', ordered, start: ordered ? parseInt(first, 10) : 1, items }, end];
}

function parseTable(lines, at, { head, aligns }) {
  const rows = [];
  let end = at + 2;
  for (; end < lines.length && !blank(lines[end]) && !interrupts(lines, end); end += 1) rows.push(cells(lines[end]));
  return [{ type: 'table', head, aligns, rows }, end];
}

/** `open`: the block is the last of a text that still grows. */
function build(block, open) {
  switch (block.type) {
    case 'heading':
      return withText(`h${block.level}`, block.text, open);
    case 'rule':
      return h('hr');
    case 'code':
      return buildCode(block, open);
    case 'quote':
      return withBlocks(h('blockquote'), block.blocks, open);
    case 'list':
      return buildList(block, open);
    case 'table':
      return buildTable(block);
    default:
      return withText('p', block.text, open);
  }
}

function withText(tag, text, open) {
  const element = document.createElement(tag);
  inline(element, text, open);
  return element;
}

function withBlocks(element, blocks, open) {
  blocks.forEach((block, index) => element.append(build(block, open && index === blocks.length - 1)));
  return element;
}

function buildList({ ordered, start, items }, open) {
  const list = h(ordered ? 'ol' : 'ul');
  if (ordered && start !== 1) list.start = start;
  items.forEach((blocks, index) => {
    const item = h('li');
    const box = /^\[([ xX])\] /.exec(blocks[0]?.type === 'paragraph' ? blocks[0].text : '');
    if (box) {
      blocks[0].text = blocks[0].text.slice(4);
      item.className = box[1] === ' ' ? 'task' : 'task done';
    }
    list.append(withBlocks(item, blocks, open && index === items.length - 1));
  });
  return list;
}

function buildTable({ head, aligns, rows }) {
  const row = (tag, texts) =>
    h('tr', {}, ...aligns.map((align, column) => {
      const cell = withText(tag, texts[column] ?? '', false);
      if (align) cell.className = align;
      return cell;
    }));
  const body = rows.length ? h('tbody', {}, ...rows.map((texts) => row('td', texts))) : null;
  return h('div', { class: 'table', tabIndex: 0 }, h('table', {}, h('thead', {}, row('th', head)), body));
}

function buildCode({ language, code, closed, mark }, open) {
  const lines = [...code];
  // What may be the first marks of the fence that closes it is not shown as a line of code that goes away again.
  if (open && !closed && lines.length && [mark, mark.repeat(2)].includes(lines.at(-1).trim())) lines.pop();
  if (!closed) while (lines.length && blank(lines.at(-1))) lines.pop();
  const text = h('code');
  for (const [kind, piece] of highlight(lines.join('\n'), language)) {
    text.append(kind ? h('span', { class: `t-${kind}` }, piece) : piece);
  }
  const copy = h('button', { type: 'button', class: 'copy', 'aria-label': 'Copy this code' }, 'Copy');
  return h('div', { class: 'code' }, h('div', { class: 'bar' }, h('span', {}, languageName(language)), copy), h('pre', { tabIndex: 0 }, text));
}
