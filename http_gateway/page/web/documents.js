// The documents that questions are about: dropped, chosen or pasted, and how long they are.
import {countTokens} from './api.js';
import {newId} from './conversation.js';
import {BYTES_MAX, readText} from './document_text.js';
import {Problem} from './problem.js';
import {count, element, share, tokens} from './text.js';

// A pasted text of this length is a document, not a question.
export const LONG_TEXT = 4000;
const DOCUMENTS_MAX = 100;

const at = (id) => document.getElementById(id);

export class Documents {
  // `announce`: tells a screen reader. `onChange`: called when a document has come or
  // gone.
  constructor(announce, onChange) {
    this.announce = announce;
    this.onChange = onChange;
    this.kept = [];  // as in a conversation
    this.sizes = new WeakMap();  // document -> element
    this.counting = null;  // AbortController
    this.limit = null;  // tokens that fit
    at('document-add').addEventListener('click', () => at('document-file').click());
    at('document-file').addEventListener('change', () => {
      const files = [...at('document-file').files];
      at('document-file').value = '';
      this.takeFiles(files);
    });
  }

  // Those of another conversation; `documents` is kept, and changed when they are.
  show(documents) {
    this.counting?.abort();
    this.counting = null;
    this.kept = documents;
    this.showProblem(null);
    this.draw();
    this.countAgain();
  }

  // `limit`: tokens that fit, as the server says.
  setLimit(limit) {
    if (this.limit === limit) return;
    this.limit = limit;
    this.showSizes();
  }

  async takeFiles(files) {
    for (const file of files) {
      try {
        this.take(file.name, await readText(file));
      } catch (problem) {
        if (!(problem instanceof Problem)) throw problem;
        this.showProblem(problem);
        return;
      }
    }
  }

  // Keeps the text and asks how many tokens it has.
  take(name, text) {
    const length = this.kept.reduce((sum, one) => sum + one.text.length, text.length);
    if (text.trim() === '') {
      this.showProblem(new Problem(`${name} is empty`, ''));
    } else if (length > BYTES_MAX || this.kept.length >= DOCUMENTS_MAX) {
      this.showProblem(new Problem(`${name} is too much`,
        `${count(DOCUMENTS_MAX)} documents of 48 MiB together can be sent. Remove one first.`));
    } else {
      this.showProblem(null);
      this.kept.push({id: newId(), name: this.freeName(name.slice(0, 200)), text, tokens: null});
      this.draw();
      this.onChange();
      this.countAgain();
    }
  }

  freeName(name) {
    const taken = new Set(this.kept.map((one) => one.name));
    for (let number = 2; ; ++number) {
      const free = number === 2 && !taken.has(name) ? name : `${name} (${number})`;
      if (!taken.has(free)) return free;
    }
  }

  remove(gone) {
    this.kept.splice(this.kept.indexOf(gone), 1);
    this.draw();
    this.onChange();
    this.announce(`${gone.name} is removed.`);
    at('question').focus();
  }

  draw() {
    at('documents').replaceChildren(...this.kept.map((one) => this.entry(one)));
    at('documents').hidden = this.kept.length === 0;
    this.showSizes();
  }

  entry(one) {
    const size = element('span', 'document-size', '');
    this.sizes.set(one, size);
    const remove = element('button', 'quiet', 'Remove');
    remove.type = 'button';
    remove.setAttribute('aria-label', `Remove ${one.name}`);
    remove.addEventListener('click', () => this.remove(one));
    return element('li', 'document',
      element('span', 'document-text', element('b', '', one.name), ' ', size), remove);
  }

  showSizes() {
    for (const one of this.kept) {
      const size = this.sizes.get(one);
      const part = this.limit === null ? null : one.tokens / this.limit;
      if (one.tokens === null) size.textContent = 'counting tokens…';
      else size.textContent = part === null ? tokens(one.tokens) : `${tokens(one.tokens)}, ${share(part)} of what fits`;
      size.classList.toggle('too-long', part > 1);
    }
    const counted = this.kept.filter((one) => one.tokens !== null);
    const sum = counted.reduce((all, one) => all + one.tokens, 0);
    const isTooLong = this.limit !== null && sum > this.limit;
    const total = at('documents-total');
    total.hidden = !isTooLong && this.kept.length < 2;
    total.textContent = `Together ${tokens(sum)}${isTooLong ? `, more than the ${count(this.limit)} that fit` : ''}` +
      `${counted.length < this.kept.length ? ', and what is not counted yet' : ''}.`;
    total.classList.toggle('too-long', isTooLong);
  }

  // Also when the server has come back, or has got its key.
  async countAgain() {
    if (this.counting !== null || this.isCounted) return;
    const counting = new AbortController();
    this.counting = counting;
    for (let one = this.notCounted(); one !== undefined; one = this.notCounted()) {
      try {
        const counted = await countTokens(one.text, counting.signal);
        one.tokens = counted.count;
        this.setLimit(counted.max_model_len);
        this.showSizes();
        this.announce(`${one.name}: ${this.sizes.get(one).textContent}`);
      } catch (problem) {
        if (!(problem instanceof Problem)) return;  // aborted: those of another conversation are counted
        this.sizes.get(one).textContent = `${count(one.text.length)} characters; not counted: ${problem.message}`;
        break;
      }
    }
    this.counting = null;
  }

  notCounted() {
    return this.kept.find((one) => one.tokens === null);
  }

  get isCounted() {
    return this.notCounted() === undefined;
  }

  showProblem(problem) {
    at('document-problem').hidden = problem === null;
    at('document-problem').textContent = problem === null ? '' : `${problem.message}. ${problem.detail}`.trim();
  }
}
