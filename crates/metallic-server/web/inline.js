// Inline Markdown: code, emphasis, links. Text in, a flat list of tokens, DOM nodes out.
// Every pass is linear in the text (or close to it): an answer is untrusted, and is parsed again with each piece of it.

/** Deeper than this, marks are dropped and their text stays. */
const MAX_DEPTH = 20;
const MAX_URL = 2048;
const PUNCTUATION = /[!-/:-@[-`{-~\p{P}\p{S}]/u;
const SPACE = /\s/;
const ENTITIES = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', hellip: '…', mdash: '—', ndash: '–', times: '×' };

/** The address as the browser writes it, if it is one of the web; else null. */
export function webAddress(text) {
  if (!/^https?:\/\//i.test(text)) return null;
  try {
    const url = new URL(text);
    return /^https?:$/.test(url.protocol) && url.host ? url.href : null;
  } catch {
    return null;
  }
}

/** Appends `text` to `parent`. `open`: more may follow, so marks at the end that are not closed yet are taken as if they were. */
export function inline(parent, text, open) {
  build(parent, resolve(tokenize(text, open), open));
}

function tokenize(text, open) {
  const tokens = []; // { text } | { tag, href? } | { end } | { mark, count, … } | { bracket }
  const noCloser = new Set(); // lengths of runs of backticks that nothing closes from here on
  let plain = '';
  let brackets = 0; // open so far
  let i = 0;
  const flush = () => {
    if (plain) tokens.push({ text: plain });
    plain = '';
  };
  while (i < text.length) {
    const c = text[i];
    if (c === '\\' && i + 1 < text.length) {
      const next = text[i + 1];
      if (next === '\n') {
        i += 1; // the newline that follows is a break anyway
      } else {
        plain += /[!-/:-@[-`{-~]/.test(next) ? next : c + next;
        i += 2;
      }
    } else if (c === '`') {
      const length = run(text, i, '`');
      const end = noCloser.has(length) ? -1 : closingTicks(text, i + length, length);
      if (end < 0 && !(open && !noCloser.size)) {
        noCloser.add(length);
        plain += text.slice(i, i + length);
        i += length;
      } else {
        flush();
        const code = text.slice(i + length, end < 0 ? text.length : end).replaceAll('\n', ' ');
        const padded = code.length > 2 && code[0] === ' ' && code.at(-1) === ' ' && code.trim();
        if (code) tokens.push({ tag: 'code' }, { text: padded ? code.slice(1, -1) : code }, { end: 'code' });
        i = end < 0 ? text.length : end + length;
      }
    } else if (c === '*' || c === '_' || (c === '~' && text[i + 1] === '~')) {
      flush();
      const count = run(text, i, c);
      tokens.push(delimiter(text, i, c, count));
      i += count;
    } else if (c === '[' || (c === '!' && text[i + 1] === '[')) {
      flush();
      const source = c === '!' ? '![' : '[';
      tokens.push({ bracket: 'open', text: source });
      brackets += 1;
      i += source.length;
    } else if (c === ']') {
      flush();
      const target = brackets > 0 && text[i + 1] === '(' ? destination(text, i + 2) : null;
      brackets = Math.max(0, brackets - 1);
      const end = target ? target.end : i + 1;
      tokens.push({ bracket: 'close', address: target?.address, text: text.slice(i, end) });
      i = end;
    } else if (c === '<') {
      const length = text.slice(i, i + MAX_URL).indexOf('>');
      const end = i + length;
      const address = length > 0 ? text.slice(i + 1, end) : '';
      const href = /\s/.test(address) ? null : webAddress(address);
      if (href) {
        flush();
        tokens.push({ tag: 'a', href }, { text: address }, { end: 'a' });
        i = end + 1;
      } else if (/^<br\s*\/?>/i.test(text.slice(i, i + 8))) {
        flush();
        tokens.push({ tag: 'br' });
        i = end + 1;
      } else {
        plain += c;
        i += 1;
      }
    } else if (c === 'h' && (i === 0 || !/\w/.test(text[i - 1])) && /^https?:\/\//.test(text.slice(i, i + 8))) {
      const address = bareAddress(text, i);
      const href = webAddress(address);
      if (href) {
        flush();
        tokens.push({ tag: 'a', href }, { text: address }, { end: 'a' });
      } else {
        plain += address;
      }
      i += address.length;
    } else if (c === '&') {
      const [source, value] = entity(text.slice(i, i + 12));
      plain += value;
      i += source.length;
    } else if (c === '\n') {
      plain = plain.replace(/ +$/, '');
      flush();
      tokens.push({ tag: 'br' });
      i += 1;
    } else {
      plain += c;
      i += 1;
    }
  }
  flush();
  return tokens;
}

function run(text, from, char) {
  let to = from;
  while (text[to] === char) to += 1;
  return to - from;
}

function closingTicks(text, from, length) {
  for (let at = text.indexOf('`', from); at >= 0; ) {
    const found = run(text, at, '`');
    if (found === length) return at;
    at = text.indexOf('`', at + found);
  }
  return -1;
}

/** `address "title")` behind `](`: the address, which may have parentheses in it, and where all of it ends. */
function destination(text, from) {
  const found = /^(?:<([^<>\n]*)>|([^\s()]*(?:\([^\s()]*\)[^\s()]*)*))\s{0,9}(?:"[^"]*"|'[^']*')?\s{0,9}\)/.exec(text.slice(from, from + MAX_URL));
  return found && { address: found[1] ?? found[2], end: from + found[0].length };
}

function bareAddress(text, from) {
  let address = /^[^\s<>"`|]*/.exec(text.slice(from, from + MAX_URL))[0];
  // Punctuation at the end belongs to the sentence; so does a parenthesis that was not opened in the address.
  for (;;) {
    const last = address.at(-1);
    const opened = last === ')' && address.split('(').length >= address.split(')').length;
    if (!/[.,;:!?'*_~)\]]/.test(last) || opened) return address;
    address = address.slice(0, -1);
  }
}

function entity(part) {
  const found = /^&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-z]{2,6}));/.exec(part);
  if (!found) return ['&', '&'];
  if (found[3]) return [found[0], Object.hasOwn(ENTITIES, found[3]) ? ENTITIES[found[3]] : found[0]];
  const code = found[1] ? parseInt(found[1], 10) : parseInt(found[2], 16);
  const valid = code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
  return [found[0], valid ? String.fromCodePoint(code) : '\ufffd'];
}

/** A run of `*`, `_` or `~`, and whether it may open or close emphasis. */
function delimiter(text, at, char, count) {
  const before = at === 0 ? ' ' : text[at - 1];
  const after = text[at + count] ?? ' ';
  const spaceBefore = SPACE.test(before);
  const spaceAfter = SPACE.test(after);
  const markBefore = PUNCTUATION.test(before);
  const markAfter = PUNCTUATION.test(after);
  const left = !spaceAfter && (!markAfter || spaceBefore || markBefore);
  const right = !spaceBefore && (!markBefore || spaceAfter || markAfter);
  const word = char === '_';
  return {
    mark: char,
    count,
    left: count,
    opens: left && (!word || !right || markBefore),
    closes: right && (!word || !left || markAfter),
    begin: [],
    ends: [],
  };
}

/** Pairs brackets to links and runs of marks to emphasis. */
function resolve(tokens, open) {
  const brackets = [];
  tokens.forEach((token, index) => {
    if (token.bracket === 'open') brackets.push(index);
    if (token.bracket !== 'close') return;
    const opener = brackets.pop();
    if (opener === undefined) return;
    const href = token.address && webAddress(token.address);
    if (!href) return;
    emphasis(tokens, opener + 1, index, false);
    tokens[opener] = { tag: 'a', href };
    tokens[index] = { end: 'a' };
  });
  emphasis(tokens, 0, tokens.length, open);
  return tokens;
}

function emphasis(tokens, from, to, open) {
  const openers = { '*': [], _: [], '~': [] };
  // `_` and `*` have stacks of their own; what one closes takes the openers of the other that stand inside with it.
  for (let index = from; index < to; index += 1) {
    const token = tokens[index];
    if (!token.mark) continue;
    const stack = openers[token.mark];
    while (token.closes && token.left > 0) {
      let at = stack.length - 1;
      // A run that could do both pairs only if the lengths do not add up to a multiple of three, as CommonMark has it.
      const odd = (other) =>
        (other.closes || token.opens) && (other.count + token.count) % 3 === 0 && !(other.count % 3 === 0 && token.count % 3 === 0);
      const lowest = Math.max(0, at - 50);
      while (at >= lowest && (odd(tokens[stack[at]]) || (token.mark === '~' && tokens[stack[at]].count !== token.count))) at -= 1;
      if (at < lowest || at < 0) break;
      const place = stack[at];
      const opener = tokens[place];
      const size = token.mark === '~' ? token.count : opener.left > 1 && token.left > 1 ? 2 : 1;
      const tag = token.mark === '~' ? 'del' : size === 2 ? 'strong' : 'em';
      opener.begin.unshift(tag);
      token.ends.push(tag);
      opener.left -= size;
      token.left -= size;
      for (const other of Object.values(openers)) while (other.length && other.at(-1) > place) other.pop();
      if (opener.left === 0) stack.pop();
    }
    if (token.opens && token.left > 0) stack.push(index);
  }
  if (open) {
    // `**so` at the end of what has come so far will be bold in a moment.
    const last = openers['*'].find((place) => tokens[place].left === 2 && place < tokens.length - 1);
    if (last !== undefined) {
      tokens[last].begin.unshift('strong');
      tokens[last].left = 0;
      tokens.push({ end: 'strong' });
    }
  }
  // A second pass over a part, for the text around it, must not see these again.
  for (let index = from; index < to; index += 1) {
    const token = tokens[index];
    if (token.mark) tokens[index] = { ends: token.ends, text: token.mark.repeat(token.left), begin: token.begin };
  }
}

function build(parent, tokens) {
  const stack = [parent];
  const names = [];
  let text = '';
  let inLink = 0;
  const flush = () => {
    if (text) stack.at(-1).append(text);
    text = '';
  };
  const begin = (tag, href) => {
    flush();
    const nested = tag === 'a' && inLink > 0;
    if (tag === 'a') inLink += 1;
    if (nested || stack.length > MAX_DEPTH) {
      stack.push(stack.at(-1));
    } else {
      const element = document.createElement(tag);
      if (href) {
        element.href = href;
        element.rel = 'noopener noreferrer nofollow';
        element.target = '_blank';
        element.title = href;
      }
      stack.at(-1).append(element);
      stack.push(element);
    }
    names.push(tag);
  };
  const end = (tag) => {
    // Emphasis never crosses a link's end: pairs are made inside links first.
    if (names.at(-1) !== tag) return;
    flush();
    names.pop();
    stack.pop();
    if (tag === 'a') inLink -= 1;
  };
  for (const token of tokens) {
    if (token.tag === 'br') {
      flush();
      stack.at(-1).append(document.createElement('br'));
      continue;
    }
    if (token.tag) begin(token.tag, token.href);
    token.ends?.forEach(end);
    if (token.text) text += token.text;
    token.begin?.forEach((tag) => begin(tag));
    if (token.end) end(token.end);
  }
  flush();
}
