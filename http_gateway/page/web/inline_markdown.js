// The inside of a paragraph of Markdown: emphasis, code, links. Nothing here touches the page.
//
// Source:  CommonMark 0.31, section 6, without HTML, entities and reference links, whose characters
//          stay as they were written; deleted text and bare addresses as GitHub has them.
// Cost:    linear in the text: looks back and links are bounded.

const NESTED_MAX = 16;  // emphasis in emphasis: more stays as it was written
const LOOK_BACK_MAX = 64;  // openers that a closer is compared with
const URL_MAX = 2048;
const URL_NESTED_MAX = 8;  // brackets in an address
const SPECIAL = /[\\`*_~\]<]|!?\[|https?:\/\//gi;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const SCHEMES = ['http:', 'https:', 'mailto:'];

// Returns: the address as a browser writes it; null for one that the page makes no link of.
export function safeUrl(text) {
  if (text.length > URL_MAX) return null;
  try {
    const url = new URL(text);
    return SCHEMES.includes(url.protocol) ? url.href : null;
  } catch {
    return null;  // a part of an address, or none
  }
}

// Returns: strings and {type: 'code', text} | {type: 'strong' | 'em' | 'del', children} |
//          {type: 'link', url, children}
export function parseInline(text) {
  return new InlineParser(text).parse();
}

function isSpace(character) {
  return character === '' || /\s/.test(character);
}

function isPunctuation(character) {
  return /[\p{P}\p{S}]/u.test(character);
}

function depthOf(children) {
  return children.reduce((deepest, child) => Math.max(deepest, child.depth ?? 0), 0);
}

// A link in a link is its text.
function withoutLinks(children) {
  return children.flatMap((child) => {
    if (child.type === 'link') return child.children;
    return child.children ? [{...child, children: withoutLinks(child.children)}] : [child];
  });
}

// `done` is what has been read. Openers and brackets name places in it; what stands behind a place
// moves into the node that begins there once the end of that is found.
class InlineParser {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.done = [];
    this.openers = [];  // {mark, count, place, both}
    this.brackets = [];  // {place, openers}
    this.codeWithoutEnd = new Set();  // lengths of marks
  }

  parse() {
    while (this.at < this.text.length) {
      SPECIAL.lastIndex = this.at;
      const found = SPECIAL.exec(this.text);
      const end = found?.index ?? this.text.length;
      if (end > this.at) this.done.push(this.text.slice(this.at, end));
      this.at = end;
      if (found) this.special(found[0]);
    }
    return this.done.filter((part) => part !== '');
  }

  special(mark) {
    if (mark === '\\') this.escape();
    else if (mark === '`') this.code();
    else if (mark === ']') this.closeBracket();
    else if (mark === '<') this.addressInBrackets();
    else if (mark.endsWith('[')) this.openBracket(mark);
    else if (mark.length > 1) this.address(mark);
    else this.emphasis(mark);
  }

  take(length) {
    this.done.push(this.text.slice(this.at, this.at + length));
    this.at += length;
  }

  escape() {
    const next = this.text.charAt(this.at + 1);
    this.done.push(next === '\n' || ESCAPABLE.test(next) ? next : `\\${next}`);
    this.at += 2;
  }

  runLength(mark) {
    let end = this.at;
    while (this.text.charAt(end) === mark) ++end;
    return end - this.at;
  }

  code() {
    const length = this.runLength('`');
    const begin = this.at + length;
    const end = this.codeWithoutEnd.has(length) ? -1 : this.findCodeEnd(begin, length);
    if (end < 0) {
      this.codeWithoutEnd.add(length);
      this.take(length);
      return;
    }
    let text = this.text.slice(begin, end).replaceAll('\n', ' ');
    if (text.startsWith(' ') && text.endsWith(' ') && text.trim() !== '') text = text.slice(1, -1);
    this.done.push({type: 'code', text});
    this.at = end + length;
  }

  findCodeEnd(begin, length) {
    for (let at = this.text.indexOf('`', begin); at >= 0; at = this.text.indexOf('`', at)) {
      const first = at;
      while (this.text.charAt(at) === '`') ++at;
      if (at - first === length) return first;
    }
    return -1;
  }

  link(url, children) {
    return {type: 'link', url, children, depth: depthOf(children) + 1};
  }

  addressInBrackets() {
    const end = this.text.slice(this.at, this.at + URL_MAX).indexOf('>');
    const inside = end > 0 ? this.text.slice(this.at + 1, this.at + end) : '';
    const isMail = /^[\w.+-]{1,64}@[\w-]{1,63}(\.[\w-]{1,63}){1,8}$/.test(inside);
    const url = /\s/.test(inside) ? null : safeUrl(isMail ? `mailto:${inside}` : inside);
    if (url === null) {
      this.take(1);
      return;
    }
    this.done.push(this.link(url, [inside]));
    this.at += end + 1;
  }

  // A bare one ends before the punctuation of the sentence that it stands in.
  address(scheme) {
    const rest = this.text.slice(this.at, this.at + URL_MAX);
    let length = rest.search(/[\s<>"`[\]]/);
    if (length < 0) length = rest.length;
    let opened = 0;
    for (const character of rest.slice(0, length)) opened += (character === '(') - (character === ')');
    while (length > scheme.length) {
      const last = rest.charAt(length - 1);
      if (last === ')' && opened < 0) ++opened;
      else if (!/[.,;:!?'*_~]/.test(last)) break;
      --length;
    }
    const url = /\w/.test(this.text.charAt(this.at - 1)) ? null : safeUrl(rest.slice(0, length));
    if (url === null || length === scheme.length) {
      this.take(scheme.length);
      return;
    }
    this.done.push(this.link(url, [rest.slice(0, length)]));
    this.at += length;
  }

  openBracket(mark) {
    this.brackets.push({place: this.done.length, openers: this.openers.length});
    this.take(mark.length);
  }

  closeBracket() {
    const bracket = this.brackets.pop();
    const target = bracket ? this.targetBehind(this.at + 1) : null;
    if (target === null) {
      this.take(1);
      return;
    }
    const children = withoutLinks(this.done.splice(bracket.place + 1)).filter((part) => part !== '');
    this.openers.length = Math.min(this.openers.length, bracket.openers);
    // Of a picture the page shows the link: it loads nothing from elsewhere.
    const isPicture = this.done[bracket.place] === '![';
    this.done[bracket.place] = this.link(target.url, children.length > 0 ? children : [target.url]);
    if (isPicture) this.done.splice(bracket.place, 0, 'Picture: ');
    this.brackets.length = 0;  // no link stands in another
    this.at = target.end;
  }

  // Of "(address)" or "(address "title")" at `at`: {url, end}; null if there is no such thing.
  targetBehind(at) {
    if (this.text.charAt(at) !== '(') return null;
    const rest = this.text.slice(at + 1, at + 1 + 2 * URL_MAX);
    let length = 0;
    for (let opened = 0; length < rest.length; ++length) {
      const character = rest.charAt(length);
      if (/\s/.test(character) || (character === ')' && opened === 0)) break;
      opened += (character === '(') - (character === ')');
      if (opened > URL_NESTED_MAX) return null;
    }
    const title = /^(?:\s{1,8}(?:"[^"]*"|'[^']*'))?\s{0,8}\)/.exec(rest.slice(length));
    if (title === null) return null;
    let address = rest.slice(0, length);
    if (address.startsWith('<') && address.endsWith('>')) address = address.slice(1, -1);
    const url = safeUrl(address);
    return url === null ? null : {url, end: at + 1 + length + title[0].length};
  }

  emphasis(mark) {
    const count = this.runLength(mark);
    const before = Array.from(this.text.slice(Math.max(0, this.at - 2), this.at)).at(-1) ?? '';
    const after = Array.from(this.text.slice(this.at + count, this.at + count + 2))[0] ?? '';
    const opens = !isSpace(after) && (!isPunctuation(after) || isSpace(before) || isPunctuation(before));
    const closes = !isSpace(before) && (!isPunctuation(before) || isSpace(after) || isPunctuation(after));
    const inWord = mark === '_' && opens && closes;  // snake_case is no emphasis
    const run = {mark, count, both: opens && closes};
    if (closes && (!inWord || isPunctuation(after))) this.close(run);
    if (run.count > 0) {
      const isOpener = opens && (!inWord || isPunctuation(before)) && !(mark === '~' && count > 2);
      if (isOpener) this.openers.push({...run, place: this.done.length});
      this.done.push(mark.repeat(run.count));
    }
    this.at += count;
  }

  close(run) {
    while (run.count > 0) {
      const found = this.findOpener(run);
      if (found < 0) return;
      const opener = this.openers[found];
      const length = run.mark === '~' ? run.count : Math.min(2, run.count, opener.count);
      const children = this.done.slice(opener.place + 1).filter((part) => part !== '');
      const depth = depthOf(children) + 1;
      if (depth > NESTED_MAX) {
        this.openers.length = 0;  // what is outside would be deeper
        return;
      }
      this.done.length = opener.place + 1;
      this.openers.length = found + 1;
      this.dropBrackets(opener.place);
      const type = run.mark === '~' ? 'del' : length === 2 ? 'strong' : 'em';
      opener.count -= length;
      run.count -= length;
      this.done[opener.place] = run.mark.repeat(opener.count);
      this.done.push({type, children, depth});
      if (opener.count === 0) this.openers.pop();
    }
  }

  // Those behind `place` are inside of what has been closed.
  dropBrackets(place) {
    while (this.brackets.length > 0 && this.brackets.at(-1).place > place) this.brackets.pop();
  }

  findOpener(run) {
    const last = Math.max(0, this.openers.length - LOOK_BACK_MAX);
    for (let found = this.openers.length - 1; found >= last; --found) {
      const opener = this.openers[found];
      if (opener.mark !== run.mark) continue;
      if (run.mark === '~') {
        if (opener.count === run.count) return found;
        continue;
      }
      const sum = opener.count + run.count;
      const clashes = (opener.both || run.both) && sum % 3 === 0 && opener.count % 3 !== 0;
      if (!clashes) return found;
    }
    return -1;
  }
}
