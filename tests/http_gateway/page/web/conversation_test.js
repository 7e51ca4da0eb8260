import {
  messagesFor, newAnswer, newConversation, policiesOf, requestFor, systemMessage, titleOf, toMarkdown,
} from '../page/conversation.js';
import {equal, isTrue, test} from './cases.js';

const answer = (policy, text) => ({...newAnswer(policy), text, outcome: 'done'});
function asked() {
  const conversation = newConversation(5);
  conversation.turns.push(
    {question: 'q1', about: [], seed: 1, answers: [answer('wave', ' w1 '), answer('full', 'f1')]},
    {question: 'q2', about: [], seed: 2, answers: [answer('wave', ' ')]},
    {question: 'q3', about: [], seed: 3, answers: [newAnswer('wave'), newAnswer('full')]});
  return conversation;
}

test('the model is told the answers of its own policy, and no question without one', () => {
  const conversation = asked();
  const [, , last] = conversation.turns;
  const told = (policy) => messagesFor(conversation, last, policy).map(({role, content}) => `${role}:${content}`);
  equal(told('wave'), ['user:q1', 'assistant:w1', 'user:q3']);
  equal(told('full'), ['user:q1', 'assistant:f1', 'user:q3']);
  equal(messagesFor(conversation, conversation.turns[0], 'wave'), [{role: 'user', content: 'q1'}]);
  conversation.settings.systemPrompt = ' Be brief. ';
  equal(told('wave')[0], 'system:Be brief.');
});

test('what is added leaves the beginning of the system message as it was', () => {
  const [a, b] = [{name: 'a.txt', text: 'AAA'}, {name: 'b.txt', text: 'BBB'}];
  equal(systemMessage([], ''), '');
  equal(systemMessage([a], ''), 'AAA');
  for (const [documents, prompt] of [[[a], 'p'], [[a, b], ''], [[a, b], 'p']]) {
    isTrue(systemMessage(documents, prompt).startsWith('AAA\n\n'), prompt);
  }
  isTrue(systemMessage([a, b], 'p').startsWith(systemMessage([a, b], '')), 'the prompt comes last');
  isTrue(systemMessage([a, b], '').includes('b.txt'), 'documents are named');
});

test('settings that only wave has go with wave only', () => {
  const conversation = asked();
  Object.assign(conversation.settings, {maxTokens: 7, retrievalRatio: 0, maxUnseenMass: 0.1});
  const [turn] = conversation.turns;
  const {messages, ...wave} = requestFor(conversation, turn, 'wave');
  const {context} = conversation;
  equal(wave, {policy: 'wave', seed: 1, context, max_tokens: 7, retrieval_ratio: 0, max_unseen_mass: 0.1});
  const full = requestFor(conversation, turn, 'full');
  equal([full.max_tokens, 'retrieval_ratio' in full, 'max_unseen_mass' in full, 'temperature' in full],
    [7, false, false, false]);
});

test('a new conversation goes on with settings and documents, which are its own', () => {
  const before = newConversation(1);
  before.settings.policy = 'both';
  before.documents.push({id: 'x', name: 'a', text: 'b', tokens: 1});
  const after = newConversation(2, before);
  after.settings.policy = 'full';
  after.documents.pop();
  equal([before.settings.policy, before.documents.length, after.context], ['both', 1, before.context]);
  isTrue(after.id !== before.id && after.turns.length === 0, 'it is another one');
  equal([policiesOf(before.settings), policiesOf(after.settings)], [['wave', 'full'], ['full']]);
});

test('titles are short, and whole characters', () => {
  equal(titleOf('  What\n is  it? '), 'What is it?');
  equal(Array.from(titleOf('😀'.repeat(100))).length, 60);
  isTrue(titleOf('😀'.repeat(100)).isWellFormed?.() ?? true, 'no half characters');
});

test('as Markdown it has all that was said', () => {
  const conversation = asked();
  conversation.title = 'T';
  conversation.documents.push({id: 'x', name: 'a.txt', text: 'secret', tokens: null});
  conversation.turns[0].answers[0].figures = {
    firstMs: 1, perSecond: 2, written: 3, cached: 4, prompt: 5, kvShare: 0.5, unseenMean: 0.01, unseenLargest: 0.02,
  };
  const text = toMarkdown(conversation);
  for (const wanted of ['# T\n', '* a.txt', '## Question\n\nq1', '## Answer (Wave)\n\nw1', '## Answer (Full)\n\nf1',
    '4 of 5 tokens cached, 50 % of the KV read, 1.0 % of the mass unseen', '(not ended)']) {
    isTrue(text.includes(wanted), `${wanted} is missing in ${text}`);
  }
  isTrue(!text.includes('secret'), 'documents are named only');
});
