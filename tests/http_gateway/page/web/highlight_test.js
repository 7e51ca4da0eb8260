import {Highlighter} from '../page/highlight.js';
import {equal, isTrue, test} from './cases.js';

function colors(language, ...lines) {
  const highlighter = new Highlighter(language);
  return lines.map((line) => {
    const parts = highlighter.line(line);
    equal(parts.map(({text}) => text).join(''), line, 'nothing is lost');
    return parts.filter(({kind}) => kind !== '').map(({kind, text}) => `${kind}:${text}`);
  });
}

test('words, numbers, strings and comments', () => {
  equal(colors('python', 'def f(x): return "a # \\" b" + 12.5  # why'),
    [['word:def', 'word:return', 'string:"a # \\" b"', 'number:12.5', 'comment:# why']]);
  equal(colors('cpp', 'int a = 0x1F; // c', 'ints'), [['word:int', 'number:0x1F', 'comment:// c'], []]);
  equal(colors('SQL', "SELECT 'x' -- y"), [['word:SELECT', "string:'x'", 'comment:-- y']]);
  equal(colors('js', "import {a} from './b.js';"), [['word:import', 'word:from', "string:'./b.js'"]]);
});

test('what a line leaves open goes on in the next', () => {
  equal(colors('c', 'a /* b', 'if \\', 'c */ if'), [['comment:/* b'], ['comment:if \\'], ['comment:c */', 'word:if']]);
  equal(colors('python', "x = '''if", "''' if"), [["string:'''if"], ["string:'''", 'word:if']]);
  equal(colors('js', '`a ${', 'b` let'), [['string:`a ${'], ['string:b`', 'word:let']]);
});

test('no comment begins in an address or in a word', () => {
  equal(colors('sh', 'curl http://x.org/#a $# a#b'), [[]]);
  equal(colors('cpp', "it's"), [[]]);
});

test('differences, and languages that are not known', () => {
  equal(colors('diff', '+a', '-b', ' c', '@@ 1 @@'), [['added:+a'], ['removed:-b'], [], ['comment:@@ 1 @@']]);
  equal(colors('brainfuck', 'if 12 "x"'), [[]]);
  equal(colors('', ''), [[]]);
  equal(colors('constructor', 'if'), [[]]);
});

test('lines made to be slow are read in time', () => {
  for (const line of ["'".repeat(4999), "\\'".repeat(2500), '/*'.repeat(2500), '"'.repeat(200000), 'a'.repeat(4999),
    '😀"'.repeat(1000)]) {
    const begun = performance.now();
    colors('cpp', line, line);
    isTrue(performance.now() - begun < 2000, `${line.slice(0, 10)} took ${performance.now() - begun} ms`);
  }
});
