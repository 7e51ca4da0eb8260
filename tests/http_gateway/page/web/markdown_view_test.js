import {MarkdownView} from '../page/markdown_view.js';
import {equal, isTrue, test} from './cases.js';

const TEXT = `# Title
A **bold** word and \`code\`, see [here](https://x.org/?a=1&b=2) <b onclick="x()">no</b>.

- one
- two
  1. deep
  2. deeper
- [x] three

| a | b |
|---|--:|
| 1 | 2 |

\`\`\`python
def f():  # why
    return "<i>"
\`\`\`

> quoted

---
The end.`;

function shown(...texts) {
  const parent = document.createElement('div');
  const view = new MarkdownView(parent);
  for (const text of texts) view.show(text);
  return parent;
}

function prefixes(text, step) {
  return Array.from({length: Math.ceil(text.length / step)}, (_, index) => text.slice(0, step * (index + 1)));
}

test('Markdown becomes elements', () => {
  const parent = shown(TEXT);
  equal([...parent.children].map((child) => child.tagName), ['H4', 'P', 'UL', 'DIV', 'DIV', 'BLOCKQUOTE', 'HR', 'P']);
  equal(parent.querySelector('strong').textContent, 'bold');
  equal([...parent.querySelectorAll('ul > li')].length, 3);
  equal(parent.querySelector('ul ol li:last-child').textContent, 'deeper');
  equal(parent.querySelector('[role=img]').getAttribute('aria-label'), 'Done:');
  equal(parent.querySelector('tbody').textContent, '12');
  equal(parent.querySelector('pre').textContent, 'def f():  # why\n    return "<i>"');
  equal([...parent.querySelectorAll('.code-lines span[class]')].map((part) => part.className), ['code-word', 'code-comment', 'code-word', 'code-string']);
});

test('nothing of it is HTML, and links tell nothing of the page', () => {
  const parent = shown(TEXT);
  equal([parent.querySelector('b'), parent.querySelector('i')], [null, null]);
  isTrue(parent.textContent.includes('<b onclick="x()">no</b>'), 'tags are text');
  const link = parent.querySelector('a');
  equal([link.href, link.target, link.rel], ['https://x.org/?a=1&b=2', '_blank', 'noopener noreferrer nofollow']);
  for (const text of ['[a](javascript:alert(1))', '<img src=x onerror=alert(1)>', '![a](https://x.org/a.png)', '```"><script>\nx\n```']) {
    equal(shown(text).querySelectorAll('script, img, iframe, [onerror], a[href^="javascript"]').length, 0, text);
  }
});

test('written bit by bit it is the same', () => {
  const whole = shown(TEXT).innerHTML;
  for (const step of [1, 3, 7]) equal(shown(...prefixes(TEXT, step)).innerHTML, whole, `in steps of ${step}`);
});

test('what has been written stays as it is', async () => {
  const parent = document.createElement('div');
  const view = new MarkdownView(parent);
  view.show('first\n\n- a\n- b');
  const [first] = parent.children;
  const item = parent.querySelector('li');
  view.show('first\n\n- a\n- b\n- c\n');
  isTrue(parent.querySelector('li') === item, 'an item is kept while its list grows');
  view.show('first\n\n- a\n- b\n- c\n\nsecond\n\nthird\n\nfourth');
  isTrue(parent.children[0] === first, 'a paragraph is kept');
  equal([...parent.children].map((child) => child.tagName), ['P', 'UL', 'P', 'P', 'P']);
});

test('a long answer costs what is new in it', () => {
  const code = Array.from({length: 3000}, (_, line) => `x = f(${line})  # line`).join('\n');
  const list = Array.from({length: 1000}, (_, line) => `- item **${line}**`).join('\n');
  const table = `a|b\n-|-\n${Array.from({length: 1000}, (_, line) => `${line}|x`).join('\n')}`;
  for (const text of [`\`\`\`python\n${code}`, list, table, 'para *graph*\n\n'.repeat(2000)]) {
    const parent = document.createElement('div');
    const view = new MarkdownView(parent);
    let made = 0;
    const original = document.createElement;
    document.createElement = function create(...of) {
      ++made;
      return original.apply(this, of);
    };
    try {
      for (const part of prefixes(text, 20)) view.show(part);
    } finally {
      delete document.createElement;
    }
    const kept = parent.querySelectorAll('*').length;
    const steps = text.length / 20;
    isTrue(made < 3 * kept + 12 * steps, `${made} elements were made for ${kept} in ${steps} steps`);
  }
});
