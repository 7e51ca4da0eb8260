import {newAnswer, newConversation} from '../page/conversation.js';
import {fromFile, toFile} from '../page/conversation_file.js';
import {equal, isTrue, test, thrown} from './cases.js';

function full() {
  const conversation = {...newConversation(7), title: 'T', revision: 3};
  conversation.settings.retrievalRatio = 0.25;
  conversation.documents.push({id: 'x', name: 'a.txt', text: 'A\0é😀', tokens: 3});
  conversation.turns.push({question: 'q', about: ['a.txt'], seed: 4294967295, answers: [
    {
      ...newAnswer('wave'), text: 'w', thought: 't', outcome: 'done', reason: 'stop',
      figures: {
        firstMs: 1.5, perSecond: null, written: 1, cached: 0, prompt: 9, kvShare: null, unseenMean: 0, unseenLargest: 0,
      },
    },
    newAnswer('full')]});
  return conversation;
}

test('what was saved comes back as a conversation of its own', () => {
  const before = full();
  const after = fromFile(toFile(before));
  for (const name of ['title', 'createdAt', 'changedAt', 'settings', 'turns']) equal(after[name], before[name], name);
  equal(after.documents.map(({name, text, tokens}) => [name, text, tokens]), [['a.txt', 'A\0é😀', null]]);
  equal(after.revision, 0);
  isTrue(after.id !== before.id && after.context !== before.context, 'it has its own names');
});

test('a file that is wrong is refused with the place', () => {
  const change = (body) => {
    const file = JSON.parse(toFile(full()));
    body(file);
    return JSON.stringify(file);
  };
  const wrong = [
    ['', 'not JSON'], ['null', 'file: an object'], ['[]', 'file: an object'], ['{}', 'file.format'],
    [change((file) => { file.version = 2; }), 'file.version'],
    [change((file) => { file.other = 1; }), '"other" is not known'],
    [change((file) => { delete file.turns; }), 'file.turns: a list'],
    [change((file) => { file.turns[0].answers[0].policy = 'x'; }), 'file.turns[0].answers[0].policy: one of wave, full'],
    [change((file) => { file.turns[0].answers[0].figures.kvShare = 'x'; }), 'figures.kvShare: a number'],
    [change((file) => { file.turns[0].answers.push(null, null); }), 'file.turns[0].answers: at most 2'],
    [change((file) => { file.turns[0].seed = -1; }), 'file.turns[0].seed'],
    [change((file) => { file.settings.temperature = 1e9; }), 'file.settings.temperature: a number from 0 to 100'],
    [change((file) => { file.documents[0].text = {}; }), 'file.documents[0].text: a text'],
    [toFile(full()).replace('"format"', '"__proto__": {}, "format"'), '"__proto__" is not known'],
    [`${'['.repeat(100000)}`, 'not JSON'],
  ];
  for (const [content, place] of wrong) {
    const problem = thrown(() => fromFile(content));
    isTrue(problem.detail?.includes(place), `${place}: ${problem.detail ?? problem.stack}`);
  }
});
