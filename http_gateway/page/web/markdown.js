// Markdown as models write it, into blocks. Nothing here touches the page.
//
// Source:  CommonMark 0.31, sections 4 and 5, and GitHub's tables. Left out, so that it stays as it
//          was written: HTML, indented code, headings that are underlined, reference links.
// Cost:    linear in the text for each level of nesting, of which there are at most NESTED_MAX.

const NESTED_MAX = 16;  // lists and quotes in each other: more are paragraphs
const INDENT = 2;  // of what belongs to an item, at least; models are not exact

// Returns: blocks in the order of the text, each with `begin` (its place in the text), `source` (its
//          lines) and
//            {type: 'paragraph', text} | {type: 'heading', level, text} | {type: 'rule'} |
//            {type: 'code', language, text, isClosed} | {type: 'quote', blocks} |
//            {type: 'list', isOrdered, start, items: [{isDone, blocks, source}]} |
//            {type: 'table', alignment, head, rows}
//          isDone: null for an item without a box. What is appended to a text changes its last two
//          blocks only.
export function parseBlocks(text, depth = 0) {
  return new BlockParser(text, depth).parse();
}

function indentOf(line) {
  let indent = 0;
  while (line.charAt(indent) === ' ') ++indent;
  return line.charAt(indent) === '\t' ? indent + 4 : indent;
}

function withoutIndent(line, most) {
  let at = 0;
  while (at < most && line.charAt(at) === ' ') ++at;
  return line.charAt(at) === '\t' && at < most ? line.slice(at + 1) : line.slice(at);
}

function fenceOf(line) {
  const found = /^ {0,3}(`{3,}|~{3,})(.*)$/.exec(line);
  if (!found || (found[1].startsWith('`') && found[2].includes('`'))) return null;
  return {mark: found[1], language: found[2].trim().split(/\s/, 1)[0]};
}

function headingOf(line) {
  const found = /^ {0,3}(#{1,6})(?:[ \t](.*))?$/.exec(line);
  if (!found) return null;
  let text = (found[2] ?? '').trim();
  let end = text.length;
  while (text.charAt(end - 1) === '#') --end;
  if (end === 0 || /\s/.test(text.charAt(end - 1))) text = text.slice(0, end).trimEnd();
  return {type: 'heading', level: found[1].length, text};
}

function isRule(line) {
  return /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/.test(line);
}

function isQuote(line) {
  return /^ {0,3}>/.test(line);
}

// {indent, isOrdered, start, inside (place of the text)}
function itemOf(line) {
  const found = /^( {0,3})([-*+]|\d{1,9}[.)])([ \t]+|$)/.exec(line);
  if (!found || isRule(line)) return null;
  const isOrdered = found[2].length > 1;
  const marked = found[1].length + found[2].length;
  return {
    indent: found[1].length, isOrdered, start: isOrdered ? Number.parseInt(found[2], 10) : 1,
    inside: found[3].length > 4 ? marked + 1 : marked + Math.max(1, found[3].length),
  };
}

// The cells of a row; a stroke behind a backslash is text.
export function cellsOf(line) {
  const cells = [];
  let cell = '';
  const row = line.trim();
  for (let at = row.startsWith('|') ? 1 : 0; at < row.length; ++at) {
    const character = row.charAt(at);
    if (character === '\\' && row.charAt(at + 1) === '|') {
      cell += '|';
      ++at;
    } else if (character === '|') {
      cells.push(cell.trim());
      cell = '';
    } else {
      cell += character;
    }
  }
  if (cell.trim() !== '' || !row.endsWith('|')) cells.push(cell.trim());
  return cells;
}

// 'left', 'center', 'right' or '' for each column; null if `line` is not what stands under a head.
function alignmentOf(line) {
  if (!line.includes('-')) return null;
  const cells = cellsOf(line);
  if (!cells.every((cell) => /^:?-+:?$/.test(cell))) return null;
  return cells.map((cell) => {
    const isRight = cell.endsWith(':');
    if (cell.startsWith(':')) return isRight ? 'center' : 'left';
    return isRight ? 'right' : '';
  });
}

class BlockParser {
  constructor(text, depth) {
    this.lines = text.split('\n').map((line) => (line.endsWith('\r') ? line.slice(0, -1) : line));
    this.begins = [];
    let begin = 0;
    for (const line of text.split('\n')) {
      this.begins.push(begin);
      begin += line.length + 1;
    }
    this.depth = depth;
    this.at = 0;
  }

  parse() {
    const blocks = [];
    while (this.at < this.lines.length) {
      if (this.isBlank(this.at)) {
        ++this.at;
        continue;
      }
      const first = this.at;
      const block = this.next();
      blocks.push({...block, begin: this.begins[first], source: this.lines.slice(first, this.at).join('\n')});
    }
    return blocks;
  }

  isBlank(at) {
    return this.lines[at].trim() === '';
  }

  next() {
    const line = this.lines[this.at];
    const fence = fenceOf(line);
    if (fence) return this.code(fence);
    const heading = headingOf(line);
    if (heading) {
      ++this.at;
      return heading;
    }
    if (isRule(line)) {
      ++this.at;
      return {type: 'rule'};
    }
    if (this.depth < NESTED_MAX) {
      if (isQuote(line)) return this.quote();
      const item = itemOf(line);
      if (item) return this.list(item);
    }
    return this.isTable(this.at) ? this.table() : this.paragraph();
  }

  code({mark, language}) {
    const indent = indentOf(this.lines[this.at]);
    const text = [];
    let isClosed = false;
    for (++this.at; this.at < this.lines.length && !isClosed; ++this.at) {
      const line = this.lines[this.at];
      const end = fenceOf(line);
      isClosed = end !== null && end.language === '' && end.mark.startsWith(mark);
      if (!isClosed) text.push(withoutIndent(line, indent));
    }
    return {type: 'code', language, text: text.join('\n'), isClosed};
  }

  quote() {
    const inside = [];
    while (this.at < this.lines.length && isQuote(this.lines[this.at])) {
      inside.push(this.lines[this.at].replace(/^ {0,3}> ?/, ''));
      ++this.at;
    }
    return {type: 'quote', blocks: parseBlocks(inside.join('\n'), this.depth + 1)};
  }

  list(first) {
    const items = [];
    let end = this.at;
    while (this.at < this.lines.length) {
      const item = itemOf(this.lines[this.at]);
      if (!item || item.isOrdered !== first.isOrdered) break;
      items.push(this.item(item));
      end = this.at;
      while (this.at < this.lines.length && this.isBlank(this.at)) ++this.at;
    }
    this.at = end;  // blank lines behind it are not its own
    return {type: 'list', isOrdered: first.isOrdered, start: first.start, items};
  }

  item({indent, inside}) {
    const text = [this.lines[this.at].slice(inside)];
    let blanks = 0;
    for (++this.at; this.at < this.lines.length; ++this.at) {
      const line = this.lines[this.at];
      if (this.isBlank(this.at)) {
        ++blanks;
        continue;
      }
      const isInside = indentOf(line) >= Math.min(inside, indent + INDENT);
      const goesOn = blanks === 0 && !this.beginsBlock(this.at) && itemOf(line) === null;
      if (!isInside && !goesOn) break;
      for (; blanks > 0; --blanks) text.push('');
      text.push(withoutIndent(line, inside));
    }
    this.at -= blanks;
    const box = /^\[([ xX])\] /.exec(text[0]);
    if (box) text[0] = text[0].slice(4);
    const source = text.join('\n');
    return {isDone: box ? box[1] !== ' ' : null, source, blocks: parseBlocks(source, this.depth + 1)};
  }

  isTable(at) {
    if (at + 1 >= this.lines.length || !this.lines[at].includes('|')) return false;
    const alignment = alignmentOf(this.lines[at + 1]);
    return alignment !== null && alignment.length === cellsOf(this.lines[at]).length;
  }

  table() {
    const head = cellsOf(this.lines[this.at]);
    const alignment = alignmentOf(this.lines[this.at + 1]);
    const rows = [];
    for (this.at += 2; this.at < this.lines.length; ++this.at) {
      const line = this.lines[this.at];
      if (!line.includes('|') || this.beginsBlock(this.at)) break;
      rows.push(cellsOf(line));
    }
    return {type: 'table', alignment, head, rows};
  }

  // Whether the line ends a paragraph above it.
  beginsBlock(at) {
    const line = this.lines[at];
    if (fenceOf(line) || headingOf(line) || isRule(line)) return true;
    if (this.depth >= NESTED_MAX) return false;
    const item = itemOf(line);
    // A year at the beginning of a line is no list.
    return isQuote(line) || (item !== null && item.start === 1 && line.length > item.inside);
  }

  paragraph() {
    const text = [this.lines[this.at].trim()];
    for (++this.at; this.at < this.lines.length && !this.isBlank(this.at); ++this.at) {
      if (this.beginsBlock(this.at) || this.isTable(this.at)) break;
      text.push(this.lines[this.at].trim());
    }
    return {type: 'paragraph', text: text.join('\n')};
  }
}
