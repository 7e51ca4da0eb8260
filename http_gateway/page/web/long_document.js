// The document that questions are about: dropped, chosen or pasted, and how long it is.
import {Problem, countTokens} from './api.js';
import {count, share, tokens} from './text.js';

// The server takes bodies of 64 MiB, in which some characters need six bytes.
const BYTES_MAX = 48 * 1024 * 1024;
// A pasted text of this length is a document, not a question.
export const LONG_TEXT = 4000;

const at = (id) => document.getElementById(id);

export async function readText(file) {
  if (file.size > BYTES_MAX) {
    throw new Problem(`${file.name} is too large`, `It has ${count(file.size / 1048576)} MiB; 48 MiB can be sent.`);
  }
  let bytes;
  try {
    bytes = new Uint8Array(await file.arrayBuffer());
  } catch {
    throw new Problem(`${file.name} cannot be read`, 'Is it a folder, or gone?');
  }
  const isUtf16 = bytes.length >= 2 && (bytes[0] << 8 | bytes[1]) === 0xfffe;
  try {
    const text = new TextDecoder(isUtf16 ? 'utf-16le' : 'utf-8', {fatal: true}).decode(bytes);
    if (!text.includes('\0')) return text;
  } catch {
    // told below
  }
  throw new Problem(`${file.name} is not a text`, 'Plain text in UTF-8 can be read; PDF and Word files cannot.');
}

export class LongDocument {
  // `announce`: tells a screen reader. `onChange`: called when there is another document, or none.
  constructor(announce, onChange) {
    this.announce = announce;
    this.onChange = onChange;
    this.name = '';
    this.text = '';
    this.counting = null;
    at('document-remove').addEventListener('click', () => {
      this.remove();
      announce('The document is removed.');
      at('question').focus();
    });
    at('document-add').addEventListener('click', () => at('document-file').click());
    at('document-file').addEventListener('change', () => {
      const [file] = at('document-file').files;
      at('document-file').value = '';
      if (file) this.takeFile(file);
    });
  }

  async takeFile(file) {
    try {
      await this.take(file.name, await readText(file));
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      this.showProblem(problem);
    }
  }

  // Keeps the text and asks how many tokens it has.
  async take(name, text) {
    if (text.trim() === '') {
      this.showProblem(new Problem(`${name} is empty`, ''));
      return;
    }
    this.showProblem(null);
    this.name = name;
    this.text = text;
    at('document').hidden = false;
    at('document-name').textContent = name;
    this.onChange();
    await this.countAgain();
  }

  // Also when the server has come back, or has got its key.
  async countAgain() {
    if (this.text === '') return;
    this.counting?.abort();
    const counting = new AbortController();
    this.counting = counting;
    const size = at('document-size');
    size.textContent = 'counting tokens…';
    size.classList.remove('too-long');
    try {
      const counted = await countTokens(this.text, counting.signal);
      const part = counted.count / counted.max_model_len;
      size.textContent = part > 1
        ? `${tokens(counted.count)}, more than the ${count(counted.max_model_len)} that fit`
        : `${tokens(counted.count)}, ${share(part)} of what fits`;
      size.classList.toggle('too-long', part > 1);
      this.counting = null;
      this.announce(`${this.name}: ${size.textContent}`);
    } catch (problem) {
      if (!(problem instanceof Problem)) return;  // aborted: another one is counted
      size.textContent = `${count(this.text.length)} characters; not counted: ${problem.message}`;
    }
  }

  get isCounted() {
    return this.counting === null;
  }

  remove() {
    this.counting?.abort();
    this.counting = null;
    this.name = '';
    this.text = '';
    at('document').hidden = true;
    this.showProblem(null);
    this.onChange();
  }

  showProblem(problem) {
    at('document-problem').hidden = problem === null;
    at('document-problem').textContent = problem === null ? '' : `${problem.message}. ${problem.detail}`.trim();
  }
}
