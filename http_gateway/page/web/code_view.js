// A block of code on the page, that grows while it is written.
import {copyButton} from './clipboard.js';
import {Highlighter} from './highlight.js';
import {element} from './text.js';

// Lines that are laid out together: the browser does that anew for what a new line is added to.
const LINES_TOGETHER = 100;

export class CodeView {
  constructor({language, text}) {
    this.language = language;
    this.code = element('code', '');
    this.rest = element('span', '');  // the last line, which may not be whole
    const pre = element('pre', '', this.code);
    pre.tabIndex = 0;  // long lines scroll, by keyboard too
    pre.setAttribute('role', 'group');
    pre.setAttribute('aria-label', language ? `Code, ${language}` : 'Code');
    this.node = element('div', 'code',
      element('div', 'code-head', element('span', '', language || 'text'),
        copyButton('Copy the code', () => this.text)),
      pre);
    this.restart();
    this.show(text);
  }

  restart() {
    this.text = '';
    this.wholeTo = 0;  // of the text: lines that stay as they are
    this.numWhole = 0;
    this.highlighter = new Highlighter(this.language);
    this.code.replaceChildren(element('span', 'code-lines', this.rest));
  }

  // Cost: of what is new, where `text` begins with what is shown.
  show(text) {
    if (text === this.text) return;
    if (!text.startsWith(this.text.slice(0, this.wholeTo))) this.restart();
    this.text = text;
    for (let end = text.indexOf('\n', this.wholeTo); end >= 0; end = text.indexOf('\n', this.wholeTo)) {
      if (this.numWhole > 0 && this.numWhole % LINES_TOGETHER === 0) {
        this.code.append(element('span', 'code-lines', this.rest));
      }
      this.rest.before(...this.colored(this.highlighter, text.slice(this.wholeTo, end)), '\n');
      this.wholeTo = end + 1;
      ++this.numWhole;
    }
    const trial = Object.assign(new Highlighter(this.language), {open: this.highlighter.open});
    this.rest.replaceChildren(...this.colored(trial, text.slice(this.wholeTo)));
  }

  colored(highlighter, line) {
    return highlighter.line(line).map(({kind, text}) => (kind === '' ? text : element('span', `code-${kind}`, text)));
  }
}
