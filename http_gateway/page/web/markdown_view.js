// Markdown on the page. What a model wrote becomes text in elements that are made here, one by one:
// none of it is read as HTML.
import {CodeView} from './code_view.js';
import {parseInline} from './inline_markdown.js';
import {parseBlocks} from './markdown.js';
import {element} from './text.js';

// A heading of an answer stands below those of the page (h1 to h3).
const HEADING_SHIFT = 3;
const HEADING_LAST = 6;
const LIVE = 2;  // blocks at the end, which what comes next can change

function inlineNodes(parts) {
  return parts.map((part) => {
    if (typeof part === 'string') return document.createTextNode(part);
    if (part.type === 'code') return element('code', '', part.text);
    if (part.type !== 'link') return element(part.type, '', ...inlineNodes(part.children));
    const link = element('a', '', ...inlineNodes(part.children));
    link.href = part.url;
    link.title = part.url;
    link.target = '_blank';
    link.rel = 'noopener noreferrer nofollow';
    return link;
  });
}

// Views: `node` is on the page; show(block) changes it to another block and returns whether the view
// can do that.

class TextView {
  constructor(block) {
    const level = Math.min(HEADING_LAST, (block.level ?? 0) + HEADING_SHIFT);
    this.tag = block.type === 'heading' ? `h${level}` : 'p';
    this.node = element(this.tag, '');
    this.fill(block);
  }

  fill(block) {
    this.level = block.level;
    this.node.replaceChildren(...inlineNodes(parseInline(block.text)));
  }

  show(block) {
    if (block.level !== this.level) return false;
    this.fill(block);
    return true;
  }
}

class CodeBlockView {
  constructor(block) {
    this.code = new CodeView(block);
    this.node = this.code.node;
  }

  show(block) {
    if (block.language !== this.code.language) return false;
    this.code.show(block.text);
    return true;
  }
}

class RuleView {
  constructor() {
    this.node = element('hr', '');
  }

  show() {
    return true;
  }
}

class QuoteView {
  constructor(block) {
    this.node = element('blockquote', '');
    this.inside = new BlockList(this.node);
    this.show(block);
  }

  show(block) {
    this.inside.show(block.blocks);
    return true;
  }
}

class ListView {
  constructor(block) {
    this.isOrdered = block.isOrdered;
    this.start = block.start;
    this.node = element(block.isOrdered ? 'ol' : 'ul', '');
    if (block.isOrdered && block.start !== 1) this.node.start = block.start;
    this.items = [];  // {source, isDone, node, inside}
    this.show(block);
  }

  show({isOrdered, start, items}) {
    if (isOrdered !== this.isOrdered || start !== this.start) return false;
    items.forEach((item, index) => {
      const shown = this.items[index];
      if (shown?.source === item.source && shown.isDone === item.isDone) return;
      if (shown?.isDone === item.isDone) {
        shown.source = item.source;
        shown.inside.show(item.blocks);
        return;
      }
      const fresh = this.made(item);
      if (shown) shown.node.replaceWith(fresh.node);
      else this.node.append(fresh.node);
      this.items[index] = fresh;
    });
    for (const gone of this.items.splice(items.length)) gone.node.remove();
    return true;
  }

  made({source, isDone, blocks}) {
    const node = element('li', isDone === null ? '' : 'task');
    const box = element('div', '');
    if (isDone !== null) {
      const mark = element('span', 'task-mark', isDone ? '☑' : '☐');
      mark.setAttribute('role', 'img');
      mark.setAttribute('aria-label', isDone ? 'Done:' : 'To do:');
      node.append(mark);
    }
    node.append(box);
    const inside = new BlockList(box);
    inside.show(blocks);
    return {source, isDone, node, inside};
  }
}

class TableView {
  constructor(block) {
    this.alignment = block.alignment;
    this.headSource = JSON.stringify([block.head, block.alignment]);
    this.body = element('tbody', '');
    this.rows = [];  // {source, node}
    const table = element('table', '', element('thead', '', this.row('th', block.head)), this.body);
    this.node = element('div', 'table', table);
    this.node.tabIndex = 0;  // a wide one scrolls, by keyboard too
    this.node.setAttribute('role', 'group');
    this.node.setAttribute('aria-label', 'Table');
    this.show(block);
  }

  row(tag, cells) {
    return element('tr', '', ...cells.map((cell, column) => {
      const made = element(tag, this.alignment[column] ? `to-${this.alignment[column]}` : '',
        ...inlineNodes(parseInline(cell)));
      if (tag === 'th' && cell !== '') made.scope = 'col';
      return tag === 'th' && cell === '' ? element('td', '') : made;
    }));
  }

  show({head, alignment, rows}) {
    if (JSON.stringify([head, alignment]) !== this.headSource) return false;
    rows.forEach((cells, index) => {
      const source = JSON.stringify(cells);
      if (this.rows[index]?.source === source) return;
      const node = this.row('td', cells);
      if (this.rows[index]) this.rows[index].node.replaceWith(node);
      else this.body.append(node);
      this.rows[index] = {source, node};
    });
    for (const gone of this.rows.splice(rows.length)) gone.node.remove();
    return true;
  }
}

const VIEWS = {
  paragraph: TextView, heading: TextView, code: CodeBlockView, rule: RuleView, quote: QuoteView, list: ListView,
  table: TableView,
};

// The last children of an element, a view each. What has not changed is not touched.
class BlockList {
  constructor(parent) {
    this.parent = parent;
    this.shown = [];  // {block, view}
  }

  show(blocks) {
    blocks.forEach((block, index) => {
      const shown = this.shown[index];
      const isSameKind = shown?.block.type === block.type;
      if (isSameKind && shown.block.source === block.source) return;
      if (isSameKind && shown.view.show(block)) {
        shown.block = block;
        return;
      }
      const view = new VIEWS[block.type](block);
      if (shown) shown.view.node.replaceWith(view.node);
      else this.parent.append(view.node);
      this.shown[index] = {block, view};
    });
    for (const gone of this.shown.splice(blocks.length)) gone.view.node.remove();
  }

  // The first `count` will not change any more.
  settle(count) {
    this.shown.splice(0, count);
  }
}

export class MarkdownView {
  // `parent`: an empty element.
  constructor(parent) {
    this.list = new BlockList(parent);
    this.settledTo = 0;
  }

  // `text`: what was given before, and more behind it.
  // Cost: of the last blocks, however long the text before them is.
  show(text) {
    const blocks = parseBlocks(text.slice(this.settledTo));
    this.list.show(blocks);
    const settled = blocks.length - LIVE;
    if (settled <= 0) return;
    this.list.settle(settled);
    this.settledTo += blocks[settled].begin;
  }
}
