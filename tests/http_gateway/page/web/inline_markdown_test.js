import {parseInline, safeUrl} from '../page/inline_markdown.js';
import {equal, isTrue, test} from './cases.js';

const bare = (parts) => parts.reduce((all, part) => {
  if (typeof part !== 'string') {
    const {depth, ...rest} = part;
    all.push(rest.children ? {...rest, children: bare(rest.children)} : rest);
  } else if (typeof all.at(-1) === 'string') {
    all.push(all.pop() + part);
  } else {
    all.push(part);
  }
  return all;
}, []);
const parse = (text) => bare(parseInline(text));
const em = (...children) => ({type: 'em', children});
const strong = (...children) => ({type: 'strong', children});
const link = (url, ...children) => ({type: 'link', url, children});
const code = (text) => ({type: 'code', text});

test('text is text', () => {
  for (const text of ['plain', 'a * b * c', '2*3', 'snake_case_name', '<script>alert(1)</script>', '&lt;',
    '[x]', '[x](', '**', '~', '`', 'a < b']) {
    equal(parse(text), [text]);
  }
  equal(parse(''), []);
});

test('emphasis', () => {
  equal(parse('*a* **b** ***c*** _d_ __e__'),
    [em('a'), ' ', strong('b'), ' ', em(strong('c')), ' ', em('d'), ' ', strong('e')]);
  equal(parse('**a *b* c**'), [strong('a ', em('b'), ' c')]);
  equal(parse('*a **b***'), [em('a ', strong('b'))]);
  equal(parse('**bold:** then'), [strong('bold:'), ' then']);
  equal(parse('a*b*c'), ['a', em('b'), 'c']);
  equal(parse('**open'), ['**open']);
  equal(parse('***x**'), ['*', strong('x')]);
  equal(parse('~~a~~ ~b~ ~~~c~~~'), [{type: 'del', children: ['a']}, ' ', {type: 'del', children: ['b']}, ' ~~~c~~~']);
  equal(parse('*a\nb*'), [em('a\nb')]);
});

test('backslashes and code', () => {
  equal(parse('\\*a\\* \\\\ \\q \\'), ['*a* \\ \\q \\']);
  equal(parse('`a*b*` ``c`d`` ` e `'), [code('a*b*'), ' ', code('c`d'), ' ', code('e')]);
  equal(parse('``a` b'), ['``a` b']);
  equal(parse('*a `*` b*'), [em('a ', code('*'), ' b')]);
});

test('links lead to http, https and mail', () => {
  equal(parse('[a *b*](https://x.org/y "t") c'), [link('https://x.org/y', 'a ', em('b')), ' c']);
  equal(parse('see https://x.org/a_(b)_c. Or (http://y.org/)!'),
    ['see ', link('https://x.org/a_(b)_c', 'https://x.org/a_(b)_c'), '. Or (', link('http://y.org/', 'http://y.org/'), ')!']);
  equal(parse('<https://x.org> <a@b.cd>'), [link('https://x.org/', 'https://x.org'), ' ', link('mailto:a@b.cd', 'a@b.cd')]);
  equal(parse('[https://x.org](https://y.org)'), [link('https://y.org/', 'https://x.org')]);
  equal(parse('![p](https://x.org/p.png)'), ['Picture: ', link('https://x.org/p.png', 'p')]);
  equal(parse('[a [b](https://x.org)](https://y.org)'),
    ['[a ', link('https://x.org/', 'b'), '](', link('https://y.org/', 'https://y.org'), ')']);
});

test('other addresses stay text', () => {
  for (const url of ['javascript:alert(1)', 'JaVaScRiPt:alert(1)', 'data:text/html,x', 'vbscript:x', 'file:///etc', '/stats',
    'x.md', '//x.org',
    'blob:https://x.org/1', 'java\tscript:alert(1)', ' javascript:alert(1)', `https://${'a'.repeat(3000)}`]) {
    equal(safeUrl(url), null, url);
    // What is behind its scheme may be a bare address of its own.
    const isNoLink = !JSON.stringify(parse(`[a](${url})`)).includes('"link"');
    isTrue(isNoLink || url.includes('https:'), url);
  }
  equal(parse('[a](javascript:b)'), ['[a](javascript:b)']);
  equal(safeUrl('https://x.org/ä'), 'https://x.org/%C3%A4');
});

test('text made to be slow or deep is read in time, and no deeper than it can be shown', () => {
  const hostile = ['*'.repeat(100000), '*a '.repeat(50000), '*a '.repeat(30000) + 'a* '.repeat(30000),
    '**a _b '.repeat(20000),
    '*a **b '.repeat(20000) + 'b** a* '.repeat(20000), '['.repeat(100000), '[]('.repeat(40000),
    '[a]('.repeat(20000) + ')'.repeat(20000), '<'.repeat(100000),
    '`'.repeat(50000), Array.from({length: 400}, (_, length) => '`'.repeat(length + 1)).join(' '), 'https://'.repeat(15000), `https://x.org/${')'.repeat(50000)}`,
    '\\'.repeat(100001), '~~a'.repeat(30000), '![a'.repeat(30000), '*a*'.repeat(40000), `[a](${' '.repeat(50000)}`, '_a'.repeat(50000)];
  const depthOf = (parts) => parts.reduce((most, part) => Math.max(most, part.children ? 1 + depthOf(part.children) : 0), 0);
  for (const text of hostile) {
    const begun = performance.now();
    const parts = parseInline(text);
    isTrue(performance.now() - begun < 5000, `${text.slice(0, 20)}… took ${performance.now() - begun} ms`);
    isTrue(depthOf(parts) <= 18, `${text.slice(0, 20)}… has depth ${depthOf(parts)}`);
  }
});
