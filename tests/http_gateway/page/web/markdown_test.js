import {cellsOf, parseBlocks} from '../page/markdown.js';
import {equal, isTrue, test} from './cases.js';

const bare = (blocks) => blocks.map(({begin, source, ...block}) => {
  if (block.type === 'quote') return {...block, blocks: bare(block.blocks)};
  if (block.type !== 'list') return block;
  return {...block, items: block.items.map(({source: _, ...item}) => ({...item, blocks: bare(item.blocks)}))};
});
const parse = (text) => bare(parseBlocks(text));
const paragraph = (text) => ({type: 'paragraph', text});
const item = (...blocks) => ({isDone: null, blocks});

test('paragraphs keep their lines', () => {
  equal(parse('\n one\r\ntwo\n\n \nthree'), [paragraph('one\ntwo'), paragraph('three')]);
  equal(parse(''), []);
  equal(parse(' \n\t\n'), []);
});

test('headings', () => {
  equal(parse('# One\n### Two ##\n#no\n####### no'), [
    {type: 'heading', level: 1, text: 'One'}, {type: 'heading', level: 3, text: 'Two'}, paragraph('#no\n####### no')]);
  equal(parse('# C#\n#'), [{type: 'heading', level: 1, text: 'C#'}, {type: 'heading', level: 1, text: ''}]);
});

test('code keeps what it holds, to its fence or to the end', () => {
  equal(parse('```python\n# <b>\n\n~~~\n```\nafter'), [
    {type: 'code', language: 'python', text: '# <b>\n\n~~~', isClosed: true}, paragraph('after')]);
  equal(parse('~~~~\n```\n~~~\n~~~~~'), [{type: 'code', language: '', text: '```\n~~~', isClosed: true}]);
  equal(parse('text\n```cpp extra\nint'), [
    paragraph('text'), {type: 'code', language: 'cpp', text: 'int', isClosed: false}]);
  equal(parse('```a`b'), [paragraph('```a`b')]);
  equal(parse('  ```\n    deep\n  ```'), [{type: 'code', language: '', text: '  deep', isClosed: true}]);
});

test('lists, one in another', () => {
  equal(parse('- one\n- two\n  - three\n\n  more of two\n\nafter'), [
    {type: 'list', isOrdered: false, start: 1, items: [
      item(paragraph('one')),
      item(paragraph('two'), {type: 'list', isOrdered: false, start: 1, items: [item(paragraph('three'))]},
        paragraph('more of two'))]},
    paragraph('after')]);
  equal(parse('3. a\n4) b\n* c'), [
    {type: 'list', isOrdered: true, start: 3, items: [item(paragraph('a')), item(paragraph('b'))]},
    {type: 'list', isOrdered: false, start: 1, items: [item(paragraph('c'))]}]);
  equal(parse('1. a\n  - b\n\n2. c'), [{type: 'list', isOrdered: true, start: 1, items: [
    item(paragraph('a'), {type: 'list', isOrdered: false, start: 1, items: [item(paragraph('b'))]}),
    item(paragraph('c'))]}]);
  equal(parse('- [x] done\n- [ ] not\n- [y] text')[0].items.map(({isDone}) => isDone), [true, false, null]);
  equal(parse('- a\nlazy')[0].items, [item(paragraph('a\nlazy'))]);
  equal(parse('1. a\n   ```sh\n   ls\n\n   pwd\n   ```')[0].items,
    [item(paragraph('a'), {type: 'code', language: 'sh', text: 'ls\n\npwd', isClosed: true})]);
});

test('a number or a stroke in a paragraph is no list', () => {
  equal(parse('It was\n1986. A year\n-'), [paragraph('It was\n1986. A year\n-')]);
  equal(parse('so:\n1. one'), [paragraph('so:'), {type: 'list', isOrdered: true, start: 1, items: [item(paragraph('one'))]}]);
  equal(parse('-1\n*em*'), [paragraph('-1\n*em*')]);
});

test('rules and quotes', () => {
  equal(parse('a\n---\n* * *\n> b\n>\n> > c\nd'), [
    paragraph('a'), {type: 'rule'}, {type: 'rule'},
    {type: 'quote', blocks: [paragraph('b'), {type: 'quote', blocks: [paragraph('c')]}]}, paragraph('d')]);
});

test('tables', () => {
  equal(parse('| a | b |\n|:--|--:|\n| 1 | 2 \\| 3 |\n| x\n\nafter'), [
    {type: 'table', alignment: ['left', 'right'], head: ['a', 'b'], rows: [['1', '2 | 3'], ['x']]}, paragraph('after')]);
  equal(parse('text\na|b\n-|:-:\n1|2|3'), [
    paragraph('text'), {type: 'table', alignment: ['', 'center'], head: ['a', 'b'], rows: [['1', '2', '3']]}]);
  equal(parse('a|b\n---'), [paragraph('a|b'), {type: 'rule'}]);
  equal(cellsOf('||x|'), ['', 'x']);
});

test('what is appended changes the last two blocks only', () => {
  const text = '# A\npara\n#\nmore\n- a\n- b\n\n  c\n\n> q\n\na|b\n-|-\n1|2\n```js\nx\n```\n1. z\n\n---\nend\n#x\n-\n- y\n';
  for (let end = 0; end <= text.length; ++end) {
    const before = parseBlocks(text.slice(0, end));
    const after = parseBlocks(text);
    for (let index = 0; index < before.length - 2; ++index) equal(before[index], after[index], `at ${end}`);
  }
});

test('a block can be read again from where it begins', () => {
  const text = 'a\r\n\r\n- b\n- c\n\n```\nd\n```\n\ne';
  const blocks = parseBlocks(text);
  blocks.forEach((block, index) =>
    equal(bare(parseBlocks(text.slice(block.begin))), bare(blocks.slice(index))));
});

test('text made to be slow or deep is read in time', () => {
  const hostile = ['> '.repeat(20000), '- '.repeat(20000), `${'> '.repeat(15)}\n`.repeat(3000), '#'.repeat(100000),
    `# ${' '.repeat(100000)}#x`, `---${' '.repeat(100000)}x`, '|'.repeat(100000), `${'|a'.repeat(20000)}\n${'|-'.repeat(20000)}\n${'|\n'.repeat(20000)}`,
    '```\n'.repeat(30000), `\`\`\`${' '.repeat(100000)}\``, `- a\n${'  - b\n'.repeat(20000)}`, `a\n${'\n'.repeat(100000)}`,
    Array.from({length: 200}, (_, depth) => `${' '.repeat(2 * depth)}- x`).join('\n'), `${' '.repeat(100000)}a`];
  for (const text of hostile) {
    const begun = performance.now();
    parseBlocks(text);
    isTrue(performance.now() - begun < 5000, `${text.slice(0, 20)}… took ${performance.now() - begun} ms`);
  }
});
