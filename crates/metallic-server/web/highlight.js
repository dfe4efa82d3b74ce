// A small highlighter: one regular expression a language, read from left to right. Classes of tokens:
// c comment, s string, n number, k keyword, f function, y type, m macro, attribute or variable.

const words = (text) => new Set(text.split(' '));
const raw = String.raw;

const END = '(?![^])'; // of the code: `$` is the end of a line here
const SLASH = raw`\/\/.*|\/\*[^]*?(?:\*\/|${END})`;
const HASH = raw`#.*`;
const DOUBLE = raw`"(?:\\[^]|[^"\\\n])*"?`;
const SINGLE = raw`'(?:\\[^]|[^'\\\n])*'?`;
const TICKS = raw`${'`'}(?:\\[^]|[^${'`'}\\])*${'`'}?`;
const NUMBER = raw`\b(?:0[xX][\da-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)\w*`;

const C_WORDS =
  'auto bool break case char class const constexpr continue default delete do double else enum explicit extern false final float for friend goto if inline int ' +
  'long namespace new noexcept nullptr operator override private protected public register return short signed sizeof static static_assert struct switch template this ' +
  'throw true try catch typedef typename union unsigned using virtual void volatile while concept requires co_await co_return NULL';
const JS_WORDS =
  'abstract any as async await boolean break case catch class const continue debugger declare default delete do else enum export extends false finally for from function get ' +
  'if implements import in instanceof interface keyof let new null number of private protected public readonly return set static string super switch this throw true try type ' +
  'typeof undefined unknown var void while with yield never';

/** What each language has: `c` comments, `s` strings, `m` macros and variables, `k` keywords. */
const LANGUAGES = {
  rust: {
    c: SLASH,
    s: raw`b?r(?<hashes>#*)"[^]*?(?:"\k<hashes>|${END})|b?"(?:\\[^]|[^"\\])*"?|b?'(?:\\[^']{1,12}|[^'\\\n])'`,
    m: raw`#!?\[[^\]\n]*\]?|'[a-z_]\w*|\b[a-z_]\w*!(?!=)`,
    k: 'as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while bool char f32 f64 i8 i16 i32 i64 i128 isize str u8 u16 u32 u64 u128 usize',
  },
  python: {
    c: HASH,
    s: raw`[rbfuRBFU]{0,2}(?:"""[^]*?(?:"""|${END})|'''[^]*?(?:'''|${END})|${DOUBLE}|${SINGLE})`,
    m: raw`@[\w.]+`,
    k: 'and as assert async await break case class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return self True try while with yield',
  },
  javascript: { c: SLASH, s: `${DOUBLE}|${SINGLE}|${TICKS}`, m: raw`@\w+`, k: JS_WORDS },
  c: { c: SLASH, s: `${DOUBLE}|${SINGLE}`, m: raw`^[ \t]*#[ \t]*\w+`, k: C_WORDS },
  bash: {
    c: raw`(?<=^|\s)#.*`,
    s: raw`"(?:\\[^]|[^"\\])*"?|'[^']*'?`,
    m: raw`\$(?:\w+|\{[^}\n]*\}?|[@#?$!*-])|(?<=\s)--?[a-zA-Z][\w-]*`,
    k: 'case do done elif else esac export fi for function if in local return select set source sudo then unset until while cd echo exit',
  },
  json: { c: SLASH, s: DOUBLE, m: raw`"(?:\\.|[^"\\\n])*"(?=\s{0,20}:)`, k: 'true false null' },
  sql: {
    c: raw`--.*|\/\*[^]*?(?:\*\/|${END})`,
    s: raw`'(?:''|[^'])*'?`,
    folds: true,
    k: 'add all alter and as asc between by case check column constraint create default delete desc distinct drop else end exists foreign from full group having if in index inner insert int integer into is join key left like limit not null on or order outer primary references right select set table text then union unique update using values varchar view when where with',
  },
  yaml: { c: raw`(?<=^|\s)#.*`, s: `${DOUBLE}|${SINGLE}`, m: raw`^[ \t]*(?:-[ \t]+)?[\w."/][\w."/-]*(?=[ \t]{0,9}[:=](?:\s|$))|^[ \t]*\[[^\]\n]*\]+`, k: 'true false null yes no on off' },
};

const ALIASES = {
  rs: 'rust', py: 'python', python3: 'python', js: 'javascript', jsx: 'javascript', ts: 'javascript', tsx: 'javascript', typescript: 'javascript', mjs: 'javascript',
  'c++': 'c', cpp: 'c', cc: 'c', h: 'c', hpp: 'c', cuda: 'c', metal: 'c', objc: 'c', sh: 'bash', shell: 'bash', zsh: 'bash', console: 'bash', dockerfile: 'bash', makefile: 'bash',
  jsonc: 'json', json5: 'json', yml: 'yaml', toml: 'yaml', ini: 'yaml', htm: 'html', xml: 'html', svg: 'html', vue: 'html', patch: 'diff',
};

const ready = new Map();

function language(name) {
  const lower = name.toLowerCase();
  const key = Object.hasOwn(ALIASES, lower) ? ALIASES[lower] : lower;
  if (!Object.hasOwn(LANGUAGES, key)) return key;
  if (!ready.has(key)) {
    const { c, s, m, k, folds } = LANGUAGES[key];
    const parts = [`(?<c>${c})`, m && `(?<m>${m})`, `(?<s>${s})`, `(?<n>${NUMBER})`, raw`(?<word>[\p{L}_$][\w$]*)`];
    // What a macro looks like may also be in a string or in a character, and the other way round: the language says which is first.
    if (key === 'rust') [parts[1], parts[2]] = [parts[2], parts[1]];
    ready.set(key, { pattern: new RegExp(parts.filter(Boolean).join('|'), 'gmu'), keywords: words(k), folds });
  }
  return ready.get(key);
}

/** The name above a block of code: what the model wrote, if it is short. */
export const languageName = (name) => (name.length <= 20 ? name : '');

/** The code in pieces, each with its class or null. Together they are the code. */
export function highlight(code, name) {
  const found = language(name);
  if (found === 'html') return markup(code);
  if (found === 'diff') return diff(code);
  if (typeof found === 'string') return code ? [[null, code]] : [];
  const pieces = [];
  let from = 0;
  const add = (kind, at, text) => {
    if (at > from) pieces.push([null, code.slice(from, at)]);
    pieces.push([kind, text]);
    from = at + text.length;
  };
  for (const match of code.matchAll(found.pattern)) {
    const [text] = match;
    if (!text) continue;
    const { word } = match.groups;
    if (word === undefined) {
      add(['c', 'm', 's', 'n'].find((kind) => match.groups[kind] !== undefined), match.index, text);
    } else if (found.keywords.has(found.folds ? word.toLowerCase() : word)) {
      add('k', match.index, text);
    } else if (code[match.index + text.length] === '(') {
      add('f', match.index, text);
    } else if (/^\p{Lu}\w*\p{Ll}/u.test(word)) {
      add('y', match.index, text);
    }
  }
  if (from < code.length) pieces.push([null, code.slice(from)]);
  return pieces;
}

function markup(code) {
  const pieces = [];
  for (const [text] of code.matchAll(/<!--[^]*?(?:-->|$)|<[/!?]?[a-zA-Z][^<>]*>?|&#?\w{1,12};|[^<&]+|[<&]/g)) {
    if (text.startsWith('<!--')) pieces.push(['c', text]);
    else if (text[0] === '&' && text.length > 1) pieces.push(['n', text]);
    else if (text[0] !== '<' || text.length === 1) pieces.push([null, text]);
    else {
      for (const [part] of text.matchAll(/^<[/!?]?[\w:.-]+|"[^"]*"?|'[^']*'?|[\w:@.-]+|\/?>$|[^]/g)) {
        const kind = part[0] === '<' || part.endsWith('>') ? 'k' : /^["']/.test(part) ? 's' : /^[\w:@.-]/.test(part) ? 'm' : null;
        pieces.push([kind, part]);
      }
    }
  }
  return pieces;
}

function diff(code) {
  const kinds = { '+': 's', '-': 'm', '@': 'k' };
  return code.split(/(?<=\n)/).map((line) => [kinds[line[0]] ?? null, line]);
}
