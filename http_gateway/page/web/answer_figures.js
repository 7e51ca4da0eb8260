// What an answer cost, as its last chunk says.
import {count, duration, element, rate, share} from './text.js';

const COMPARABLE = 16;  // tokens: the speed of fewer says nothing

// `usage`: of the last chunk; null if the answer was cut before that. `times`: {sentAt, firstAt,
// lastAt} by the browser's clock.
export function figuresOf(usage, {sentAt, firstAt, lastAt}) {
  const written = usage?.completion_tokens ?? null;
  // The server's clock is the better one: what it sends comes in a bunch where this browser is busy.
  const decodeMs = usage?.timings?.decode_ms ?? null;
  const ms = decodeMs ?? (firstAt === null ? 0 : lastAt - firstAt);
  const hasSteps = written !== null && written > 1;
  return {
    firstMs: firstAt === null ? null : firstAt - sentAt,
    perSecond: hasSteps && ms > 0 ? (written - 1) / ms * 1000 : null,
    written,
    cached: usage?.prompt_tokens_details?.cached_tokens ?? null,
    prompt: usage?.prompt_tokens ?? null,
    kvShare: hasSteps ? usage.kv_read_ratio ?? null : null,
    unseenMean: usage?.unseen_mass?.mean ?? null,
    unseenLargest: usage?.unseen_mass?.largest ?? null,
  };
}

function fact(name, value, hint) {
  const pair = element('div', '', element('dt', '', name), element('dd', '', value ?? '–'));
  pair.title = hint;
  return pair;
}

function unseenText(mean, largest) {
  const [said, most] = [share(mean), share(largest)];
  return said === most ? said : `${said} (max ${most})`;
}

export function factsOf({firstMs, perSecond, cached, prompt, kvShare, unseenMean, unseenLargest}) {
  const known = (value, text) => (value === null ? null : text(value));
  return [
    fact('First token', known(firstMs, duration), 'From sending the question, as this browser saw it'),
    fact('Tokens/s', known(perSecond, (value) => rate(value).replace('/s', '')), 'From the first token to the last'),
    fact('Cached', known(cached, (value) => `${count(value)} of ${count(prompt ?? 0)}`),
      'Tokens of the prompt that were found in the cache, not computed'),
    fact('KV read', known(kvShare, share), 'Share of the keys and values that the steps of this answer looked at'),
    fact('Unseen mass', known(unseenMean, (value) => unseenText(value, unseenLargest ?? value)),
      'Share of the attention that was estimated, not read: on average, and at most in a step that was measured'),
  ];
}

// What two answers to a question show beside each other; null: nothing.
export function comparison(wave, full) {
  if (!wave.figures || !full.figures || wave.outcome !== 'done' || full.outcome !== 'done') return null;
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
    const fewest = Math.min(wave.figures.written, full.figures.written);
    if (fewest >= COMPARABLE && wave.figures.perSecond && full.figures.perSecond) {
      verdict += `, at ${(wave.figures.perSecond / full.figures.perSecond).toFixed(1)} times its speed`;
    }
    verdict += '.';
  }
  return verdict;
}
