// Runs in the page. Hands the list of what is not as it should be to `arguments[0]`.

const report = arguments[arguments.length - 1];
const wrong = [];
const note = (what, details) => wrong.push(`${what}: ${JSON.stringify(details)}`);
const html = (nodes) => {
  const box = document.createElement('div');
  box.append(nodes);
  return box.innerHTML.replaceAll(/ (rel|target|title|tabindex)="[^"]*"/g, '');
};

// Markdown and what it becomes; attributes that all links share are left out.
const CASES = [
  ['plain', '<p>plain</p>'],
  ['one\ntwo', '<p>one<br>two</p>'],
  ['# a\n### b ##\n#c', '<h1>a</h1><h3>b</h3><p>#c</p>'],
  ['*a* **b** ***c*** _d_ __e__ ~~f~~', '<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <em>d</em> <strong>e</strong> <del>f</del></p>'],
  ['2*3*4 snake_case_name a * b', '<p>2<em>3</em>4 snake_case_name a * b</p>'],
  ['**open *mixed** up*', '<p><em><em>open <em>mixed</em></em> up</em></p>'],
  ['`a*b*` ``c`d`` `open', '<p><code>a*b*</code> <code>c`d</code> `open</p>'],
  ['\\*a\\* &lt;&amp;&#65;&bogus;', '<p>*a* &lt;&amp;A&amp;bogus;</p>'],
  ['- a\n- b\n  - c\n    - d\n- e', '<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p><ul><li><p>d</p></li></ul></li></ul></li><li><p>e</p></li></ul>'],
  ['3. a\n4. b\n  - c', '<ol start="3"><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul></li></ol>'],
  ['- a\n\n  more\n\nout', '<ul><li><p>a</p><p>more</p></li></ul><p>out</p>'],
  ['in\n1986. no list\n- list', '<p>in<br>1986. no list</p><ul><li><p>list</p></li></ul>'],
  ['- [x] a\n- [ ] b', '<ul><li class="task done"><p>a</p></li><li class="task"><p>b</p></li></ul>'],
  ['> a\n> > b\n\nc', '<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>'],
  ['a\n\n---\nb', '<p>a</p><hr><p>b</p>'],
  ['| a | b |\n|--:|:-:|\n| 1 | `x\\|y` |\n| 2 |', '<div class="table"><table><thead><tr><th class="right">a</th><th class="center">b</th></tr></thead><tbody><tr><td class="right">1</td><td class="center"><code>x|y</code></td></tr><tr><td class="right">2</td><td class="center"></td></tr></tbody></table></div>'],
  ['a | b\n---|---x', '<p>a | b<br>---|---x</p>'],
  ['[a](https://b.c/d "t") <https://e.f/> see https://g.h/i_(j).', '<p><a href="https://b.c/d">a</a> <a href="https://e.f/">https://e.f/</a> see <a href="https://g.h/i_(j)">https://g.h/i_(j)</a>.</p>'],
  ['[a](javascript:b) [c](/d) [e](ftp://f) [g](vbscript:h)', '<p>[a](javascript:b) [c](/d) [e](ftp://f) [g](vbscript:h)</p>'],
  ['![i](https://a.b/c.png)', '<p><a href="https://a.b/c.png">i</a></p>'],
  ['[x [y](https://a.b/) z](https://c.d/)', '<p><a href="https://c.d/">x y z</a></p>'],
  ['<b onclick=x>y</b><script>z</script>', '<p>&lt;b onclick=x&gt;y&lt;/b&gt;&lt;script&gt;z&lt;/script&gt;</p>'],
  ['```zig\n<b>\n```', '<div class="code"><div class="bar"><span>zig</span><button type="button" class="copy" aria-label="Copy this code">Copy</button></div><pre><code>&lt;b&gt;</code></pre></div>'],
];

// Pieces that are put together at random: what a model might write halfway.
const PIECES = ['\n', '\n\n', '- ', '1. ', '2) ', '  ', '    ', '> ', '```', '```js\n', '`', '``', '**', '*', '_', '~~', '[a](', 'https://x.y/z', ')', '](', '|', '---', 'a', 'b c ', '# ', '<b>', '\\', 'a | b\n', '|---|---|\n', '\t', '\r\n', '&lt;', '\n- x\n', '😀', '$'];

// Texts of this size must not hold the page up; the slowest takes a tenth of the limit.
const LARGE = {
  stars: '*'.repeat(50000), emphasis: '*a '.repeat(20000), mixed: '*a_ '.repeat(20000), nested: '**a *b '.repeat(10000) + 'c* d** '.repeat(10000), brackets: '['.repeat(50000), links: '[a](b'.repeat(20000), closed: '](a)'.repeat(20000),
  ticks: Array.from({ length: 300 }, (_, i) => '`'.repeat(i + 1) + 'a').join(''), quotes: '>'.repeat(50000), bullets: '- '.repeat(20000), angles: '<'.repeat(50000), deep: Array.from({ length: 500 }, (_, i) => ' '.repeat(i * 2) + '- x').join('\n'),
  table: '|'.repeat(50000) + '\n' + '|-'.repeat(50000), blanks: '- a' + '\n'.repeat(100000) + '  b', dashes: '```yaml\n' + '-'.repeat(50000), rust: '```rust\n' + "'\\".repeat(20000), bash: '```sh\n' + '${'.repeat(20000), address: 'https://x.y/' + ')'.repeat(50000), json: '```json\n' + '"a" '.repeat(10000),
};

async function main() {
  const { render, Streaming } = await import('/web/markdown.js');
  const { highlight } = await import('/web/highlight.js');
  const { events } = await import('/web/api.js');

  for (const [text, wanted] of CASES) if (html(render(text)) !== wanted) note('rendered', [text, html(render(text)), wanted]);

  let seed = 7;
  const random = (below) => {
    seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff;
    return (seed >> 8) % below;
  };
  const texts = CASES.map(([text]) => text);
  texts.push(texts.join('\n\n'));
  for (let i = 0; i < 600; i += 1) texts.push(Array.from({ length: 3 + random(25) }, () => PIECES[random(PIECES.length)]).join(''));
  for (const text of texts) {
    const box = document.createElement('div');
    const streaming = new Streaming(box);
    for (let at = 1; at < text.length; at += 1 + random(text.length > 300 ? 20 : 3)) streaming.update(text.slice(0, at), false);
    streaming.update(text, true);
    const whole = document.createElement('div');
    whole.append(render(text));
    if (!box.isEqualNode(whole)) note('streamed', [text, box.innerHTML, whole.innerHTML]);
    const bad = [...whole.querySelectorAll('*')].find((node) => !/^(A|BLOCKQUOTE|BR|BUTTON|CODE|DEL|DIV|EM|H[1-6]|HR|LI|OL|P|PRE|SPAN|STRONG|TABLE|TBODY|TD|TH|THEAD|TR|UL)$/.test(node.nodeName) || (node.nodeName === 'A' && !/^https?:/.test(node.protocol)));
    if (bad) note('element', [text, bad.outerHTML]);
  }

  for (const [name, text] of Object.entries(LARGE)) {
    const begun = performance.now();
    render(text);
    const took = performance.now() - begun;
    if (took > 3000) note('slow', [name, took]);
  }

  const kinds = (code, language) => highlight(code, language).filter(([kind]) => kind).map(([kind, text]) => `${kind}:${text}`).join(' ');
  const COLOURS = [
    ["fn f<'a>(x: &'a str) -> String { r#\"q\"#; 'c'; println!(\"{}\", 0x1f) } // z", 'rust', "k:fn m:'a m:'a k:str y:String s:r#\"q\"# s:'c' m:println! s:\"{}\" n:0x1f c:// z"],
    ['@x\ndef f(a):\n  """doc\n  more"""\n  return None # c', 'py', 'm:@x k:def f:f s:"""doc\n  more""" k:return k:None c:# c'],
    ['const a = `x\ny`; /* c\nd */ f(1.5e3)', 'ts', 'k:const s:`x\ny` c:/* c\nd */ f:f n:1.5e3'],
    ['#include <a>\nint main() { return \'x\'; }', 'c++', "m:#include k:int f:main k:return s:'x'"],
    ['for f in *.txt; do echo "$f" --all $HOME; done # c', 'bash', 'k:for k:in k:do k:echo s:"$f" m:--all m:$HOME k:done c:# c'],
    ['{"a": [1, true, "b"]}', 'json', 'm:"a" n:1 k:true s:"b"'],
    ['<a href="b">c</a><!-- d -->', 'html', 'k:<a m:href s:"b" k:> k:</a k:> c:<!-- d -->'],
  ];
  for (const [code, language, wanted] of COLOURS) if (kinds(code, language) !== wanted) note('coloured', [kinds(code, language), wanted]);
  for (const language of ['rust', 'py', 'js', 'c', 'sh', 'json', 'html', 'sql', 'yaml', 'diff', 'none', 'constructor', '__proto__', '']) {
    const code = COLOURS.map(([text]) => text).join('\n+ ');
    if (highlight(code, language).map(([, text]) => text).join('') !== code) note('lost', language);
  }

  // Events may be cut anywhere, also within a character or a line's end.
  const bytes = new TextEncoder().encode(': hello\r\n\r\ndata: {"a":"é😀"}\r\n\r\nevent: x\ndata:one\ndata: two\n\ndata: [DONE]\n\ndata: unfinished');
  for (let size = 1; size < bytes.length; size += 1) {
    const parts = [];
    for (let at = 0; at < bytes.length; at += size) parts.push(bytes.slice(at, at + size));
    const stream = new ReadableStream({ start: (to) => (parts.forEach((part) => to.enqueue(part)), to.close()) });
    const found = [];
    for await (const data of events(stream)) found.push(data);
    if (JSON.stringify(found) !== JSON.stringify(['{"a":"é😀"}', 'one\ntwo', '[DONE]'])) note('events', [size, found]);
  }
}

main().then(() => report(wrong), (error) => report([String(error.stack)]));
