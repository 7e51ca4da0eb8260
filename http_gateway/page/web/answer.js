// One answer on the page, from the question to its figures.
import {count, duration, element, rate, share, tokens} from './text.js';

const NAMES = {wave: 'Wave', full: 'Full'};
const COMPARABLE = 16;  // tokens: the speed of fewer says nothing
const REASONS = {length: 'Cut at the longest answer that was allowed.'};

function fact(name, value, hint) {
  const pair = element('div', '', element('dt', '', name), element('dd', '', value));
  pair.title = hint;
  return pair;
}

export class Answer {
  // `keepEnd`: runs what makes the conversation longer.
  constructor(policy, keepEnd) {
    this.policy = policy;
    this.keepEnd = keepEnd;
    this.text = '';
    this.thought = '';
    this.shown = {text: 0, thought: 0};  // characters of them that are on the page
    this.frame = null;
    this.figures = null;  // when it is over: {firstMs, perSecond, cached, prompt, kvShare}
    this.sentAt = 0;
    this.firstAt = null;
    this.lastAt = null;
    this.usage = null;
    this.reason = null;

    this.state = element('span', 'state', '');
    this.bar = element('progress', '');
    this.bar.setAttribute('aria-label', `Reading, ${NAMES[policy]}`);
    this.prefill = element('div', 'prefill', this.bar);
    this.prefill.hidden = true;
    this.thoughtText = element('div', 'text', '');
    this.thoughts = element('details', 'thoughts', element('summary', '', 'Thoughts'), this.thoughtText);
    this.thoughts.hidden = true;
    this.body = element('div', 'text', '');
    this.note = element('p', 'note', '');
    this.note.hidden = true;
    this.facts = element('dl', 'facts');
    this.facts.hidden = true;
    this.element = element('article', `answer ${policy}`,
      element('header', '', element('h3', '', NAMES[policy]), this.state),
      this.prefill, this.thoughts, this.body, this.note, this.facts);
    this.element.setAttribute('aria-label', `Answer, ${NAMES[policy]}`);
  }

  waitForOther() {
    this.state.textContent = 'after the other one, so that neither slows the other down';
  }

  begin(now) {
    this.sentAt = now;
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
    if (choice.finish_reason) this.reason = choice.finish_reason;
    const {content, reasoning_content: thought} = choice.delta ?? {};
    if (!content && !thought) return;
    this.firstAt ??= now;
    this.lastAt = now;
    this.text += content ?? '';
    this.thought += thought ?? '';
    // A thousand tokens a second are fewer pictures: each costs the layout of the whole answer.
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  // Shows what has come since the last time.
  draw() {
    if (this.frame !== null) cancelAnimationFrame(this.frame);
    this.frame = null;
    this.keepEnd(() => {
      if (this.firstAt !== null) this.prefill.hidden = true;
      if (this.element.hasAttribute('aria-busy') && this.firstAt !== null) {
        this.state.textContent = this.text === '' ? 'thinking' : 'writing';
      }
      const thought = this.thought.slice(this.shown.thought);
      if (thought !== '') {
        this.thoughts.hidden = false;
        this.thoughtText.append(thought);
        this.shown.thought = this.thought.length;
      }
      // Most models begin with a space.
      const text = this.shown.text === 0 ? this.text.trimStart() : this.text.slice(this.shown.text);
      if (text !== '') {
        this.body.append(text);
        this.shown.text = this.text.length;
      }
    });
  }

  finish() {
    this.settle('');
    if (this.text.trim() === '') this.showNote('The model ended without a word.');
    if (REASONS[this.reason]) this.showNote(REASONS[this.reason]);
    this.showFacts();
  }

  stop() {
    this.settle('stopped');
    if (this.firstAt !== null) this.showFacts();
  }

  skip(why) {
    this.settle(why);
  }

  // `retry`: called when the button for that is pressed.
  fail(problem, retry) {
    this.settle('failed');
    const again = element('button', 'quiet', 'Try again');
    again.type = 'button';
    const box = element('div', 'problem', element('p', '', element('b', '', problem.message)),
      element('p', '', problem.detail ?? ''), again);
    box.setAttribute('role', 'alert');
    again.addEventListener('click', () => {
      box.remove();
      retry();
    });
    this.element.append(box);
  }

  settle(state) {
    this.draw();
    this.element.removeAttribute('aria-busy');
    this.prefill.hidden = true;
    this.state.textContent = state;
  }

  showNote(text) {
    this.note.textContent = text;
    this.note.hidden = false;
  }

  showFacts() {
    const usage = this.usage;
    const written = usage?.completion_tokens ?? 0;
    // The server's clock is the better one: what it sends comes in a bunch where this browser is busy.
    const decodeMs = usage?.timings?.decode_ms ?? this.lastAt - this.firstAt;
    this.figures = {
      firstMs: this.firstAt === null ? null : this.firstAt - this.sentAt,
      perSecond: written > 1 && decodeMs > 0 ? (written - 1) / decodeMs * 1000 : null,
      cached: usage?.prompt_tokens_details?.cached_tokens ?? null,
      prompt: usage?.prompt_tokens ?? null,
      kvShare: usage && written > 1 ? usage.kv_read_ratio : null,
    };
    const {firstMs, perSecond, cached, prompt, kvShare} = this.figures;
    this.facts.replaceChildren(
      fact('First token', firstMs === null ? '–' : duration(firstMs), 'From sending the question, as this browser saw it'),
      fact('Tokens/s', perSecond === null ? '–' : rate(perSecond).replace('/s', ''),
        'From the first token to the last'),
      fact('Cached', cached === null ? '–' : `${count(cached)} of ${count(prompt)}`,
        'Tokens of the prompt that were found in the cache, not computed'),
      fact('KV read', kvShare === null ? '–' : share(kvShare),
        'Share of the keys and values that the steps of this answer looked at'));
    this.facts.hidden = false;
  }
}

// What two answers to a question show beside each other; null: nothing.
export function comparison(wave, full) {
  if (!wave.figures || !full.figures || wave.reason === null || full.reason === null) return null;
  const words = (answer) => answer.text.trim().split(/\s+/);
  const [a, b] = [words(wave), words(full)];
  let same = 0;
  while (same < a.length && same < b.length && a[same] === b[same]) ++same;
  let verdict = 'They differ from the first word on.';
  if (same === a.length && same === b.length) {
    verdict = 'The same answer.';
  } else if (same > 0) {
    verdict = `The same up to word ${count(same)}.`;
  }
  if (wave.figures.kvShare !== null && full.figures.kvShare > 0) {
    verdict += ` Wave read ${share(wave.figures.kvShare / full.figures.kvShare)} of the KV that full read`;
    const fewest = Math.min(wave.usage.completion_tokens, full.usage.completion_tokens);
    if (fewest >= COMPARABLE && wave.figures.perSecond && full.figures.perSecond) {
      verdict += `, at ${(wave.figures.perSecond / full.figures.perSecond).toFixed(1)} times its speed`;
    }
    verdict += '.';
  }
  return verdict;
}
