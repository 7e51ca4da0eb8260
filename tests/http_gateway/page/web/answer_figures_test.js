import {comparison, figuresOf} from '../page/answer_figures.js';
import {equal, test} from './cases.js';

const TIMES = {sentAt: 100, firstAt: 350, lastAt: 1350};
const USAGE = {
  prompt_tokens: 1000, completion_tokens: 21, prompt_tokens_details: {cached_tokens: 900}, kv_read_ratio: 0.25,
  unseen_mass: {mean: 0.01, largest: 0.04}, timings: {decode_ms: 500},
};

test('figures of an answer', () => {
  equal(figuresOf(USAGE, TIMES), {
    firstMs: 250, perSecond: 40, written: 21, cached: 900, prompt: 1000, kvShare: 0.25, unseenMean: 0.01,
    unseenLargest: 0.04,
  });
  equal(figuresOf({...USAGE, timings: undefined, unseen_mass: null}, TIMES).perSecond, 20);
  const one = figuresOf({...USAGE, completion_tokens: 1}, TIMES);
  equal([one.perSecond, one.kvShare], [null, null], 'no step');
});

test('what is not known is null', () => {
  const none = {
    firstMs: null, perSecond: null, written: null, cached: null, prompt: null, kvShare: null, unseenMean: null,
    unseenLargest: null,
  };
  equal(figuresOf(null, {sentAt: 1, firstAt: null, lastAt: null}), none);
  equal(figuresOf({}, {sentAt: 1, firstAt: null, lastAt: null}), none);
  equal(figuresOf(null, TIMES), {...none, firstMs: 250});
});

function answer(text, kvShare, perSecond) {
  return {text, outcome: 'done', figures: {kvShare, perSecond, written: 20}};
}

test('two answers are compared', () => {
  equal(comparison(answer('a b', 0.2, 30), answer(' a  b ', 1, 20)),
    'The same answer. Wave read 20 % of the KV that full read, at 1.5 times its speed.');
  equal(comparison(answer('a c', null, 30), answer('a b', 1, 20)), 'The same up to word 1.');
  equal(comparison(answer('c', null, 30), answer('a', 1, 20)), 'They differ from the first word on.');
  equal(comparison({...answer('c', 1, 1), outcome: 'stopped'}, answer('a', 1, 20)), null);
  equal(comparison({...answer('c', 1, 1), figures: null}, answer('a', 1, 20)), null);
});
