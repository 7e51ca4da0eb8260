// One answer on the page, from the question to its figures.
import {factsOf, figuresOf} from './answer_figures.js';
import {copyButton} from './clipboard.js';
import {MarkdownView} from './markdown_view.js';
import {count, element, tokens} from './text.js';

const NAMES = {wave: 'Wave', full: 'Full'};
const REASONS = {length: 'Cut at the longest answer that was allowed.'};
const STATES = {stopped: 'stopped', failed: 'failed', skipped: 'not asked'};
// Of the time, drawing takes one part in so many, however slow the machine and long the last block.
const DRAWING_PART = 3;

export class Answer {
  // `saved`: an answer of a conversation, which this one writes on. `keepEnd`: runs what makes the
  // conversation longer.
  constructor(saved, keepEnd) {
    this.saved = saved;
    this.keepEnd = keepEnd;
    this.frame = null;
    this.restUntil = 0;
    this.shownThought = 0;  // characters of it that are on the page
    this.times = {sentAt: 0, firstAt: null, lastAt: null};
    this.usage = null;

    const name = NAMES[saved.policy];
    this.state = element('span', 'state', '');
    this.bar = element('progress', '');
    this.bar.setAttribute('aria-label', `Reading, ${name}`);
    this.prefill = element('div', 'prefill', this.bar);
    this.prefill.hidden = true;
    this.thoughtText = element('div', 'thought', '');
    this.thoughts = element('details', 'thoughts', element('summary', '', 'Thoughts'), this.thoughtText);
    this.thoughts.hidden = true;
    this.body = element('div', 'text', '');
    this.markdown = new MarkdownView(this.body);
    this.note = element('p', 'note', '');
    this.note.hidden = true;
    this.facts = element('dl', 'facts');
    this.facts.hidden = true;
    this.copy = copyButton(`Copy the answer, ${name}`, () => this.saved.text.trim());
    this.copy.hidden = true;
    this.element = element('article', `answer ${saved.policy}`,
      element('header', '', element('h3', '', name), this.state, this.copy),
      this.prefill, this.thoughts, this.body, this.note, this.facts);
    this.element.setAttribute('aria-label', `Answer, ${name}`);
    if (saved.outcome !== null) this.settle();
  }

  waitForOther() {
    this.state.textContent = 'after the other one, so that neither slows the other down';
  }

  begin(now) {
    this.times.sentAt = now;
    this.element.setAttribute('aria-busy', 'true');
    this.state.textContent = 'waiting for a place';
    this.prefill.hidden = false;
    this.bar.removeAttribute('value');
  }

  // Of the prompt. Returns the part that is read.
  progress({total_tokens: total, cached_tokens: cached, processed_tokens: done}) {
    this.bar.max = total;
    this.bar.value = done;
    const known = cached > 0 ? `, ${count(cached)} of them known` : '';
    this.state.textContent = `reading ${count(done)} of ${tokens(total)}${known}`;
    return total > 0 ? done / total : 1;
  }

  // A chunk of the stream.
  add(chunk, now) {
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    if (choice.finish_reason) this.saved.reason = choice.finish_reason;
    const {content, reasoning_content: thought} = choice.delta ?? {};
    if (!content && !thought) return;
    this.times.firstAt ??= now;
    this.times.lastAt = now;
    this.saved.text += content ?? '';
    this.saved.thought += thought ?? '';
    // A thousand tokens a second are fewer pictures.
    this.frame ??= requestAnimationFrame((at) => this.drawInTime(at));
  }

  drawInTime(at) {
    if (at < this.restUntil) {
      this.frame = requestAnimationFrame((next) => this.drawInTime(next));
      return;
    }
    const begun = performance.now();
    this.draw();
    const ended = performance.now();
    this.restUntil = ended + (ended - begun) * (DRAWING_PART - 1);
  }

  // Shows what has come since the last time.
  draw() {
    if (this.frame !== null) cancelAnimationFrame(this.frame);
    this.frame = null;
    this.keepEnd(() => {
      if (this.times.firstAt !== null) this.prefill.hidden = true;
      if (this.element.hasAttribute('aria-busy') && this.times.firstAt !== null) {
        this.state.textContent = this.saved.text === '' ? 'thinking' : 'writing';
      }
      const thought = this.saved.thought.slice(this.shownThought);
      if (thought !== '') {
        this.thoughts.hidden = false;
        this.thoughtText.append(thought);
        this.shownThought = this.saved.thought.length;
      }
      this.markdown.show(this.saved.text);
    });
  }

  finish() {
    this.saved.outcome = 'done';
    this.end();
  }

  stop() {
    this.saved.outcome = 'stopped';
    this.end();
  }

  skip() {
    this.saved.outcome = 'skipped';
    this.settle();
  }

  // `retry`: called when the button for that is pressed.
  fail(problem, retry) {
    this.saved.outcome = 'failed';
    this.end();
    const again = element('button', 'quiet', 'Try again');
    again.type = 'button';
    const box = element('div', 'problem', element('p', '', element('b', '', problem.message)),
      element('p', '', problem.detail ?? ''), again);
    box.setAttribute('role', 'alert');
    again.addEventListener('click', retry);
    this.element.append(box);
  }

  end() {
    if (this.times.firstAt !== null || this.usage !== null) {
      this.saved.figures = figuresOf(this.usage, this.times);
    }
    this.settle();
  }

  // Shows an answer that gets no longer.
  settle() {
    this.draw();
    const {outcome, reason, text, figures} = this.saved;
    this.element.removeAttribute('aria-busy');
    this.prefill.hidden = true;
    this.state.textContent = STATES[outcome] ?? '';
    this.copy.hidden = text.trim() === '';
    const hasText = text.trim() !== '';
    if (outcome === 'done') this.showNote(hasText ? REASONS[reason] ?? '' : 'The model ended without a word.');
    this.facts.hidden = figures === null;
    if (figures !== null) this.facts.replaceChildren(...factsOf(figures));
  }

  showNote(text) {
    this.note.textContent = text;
    this.note.hidden = text === '';
  }
}
