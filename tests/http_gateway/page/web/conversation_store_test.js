import {newAnswer, newConversation} from '../page/conversation.js';
import {ConversationStore} from '../page/conversation_store.js';
import {equal, isTrue, test} from './cases.js';

function conversation(title, changedAt, ...texts) {
  return {
    ...newConversation(1), title, changedAt,
    documents: texts.map((text, index) => ({id: `${title}${index}`, name: `${index}.txt`, text, tokens: 3})),
    turns: [{question: 'q', about: [], seed: 1, answers: [{...newAnswer('wave'), text: 'a'}]}],
  };
}

test('what is kept comes back, with the texts of its documents', async () => {
  const store = await ConversationStore.open();
  const kept = conversation('kept', 5, 'one', 'two');
  equal(await store.save(kept), 1);
  const loaded = await store.load(kept.id);
  equal([loaded.title, loaded.revision, loaded.turns, loaded.settings], ['kept', 1, kept.turns, kept.settings]);
  equal(loaded.documents.map(({name, text, tokens}) => [name, text, tokens]),
    [['0.txt', 'one', null], ['1.txt', 'two', null]]);
  loaded.documents.shift();
  equal(await store.save(loaded), 2);
  equal((await store.load(kept.id)).documents.map(({text}) => text), ['two']);
  equal(await store.load('other'), null);
  await store.remove(kept.id);
});

test('the list has the newest first, and nothing that was deleted', async () => {
  const store = await ConversationStore.open();
  const all = [conversation('a', 1), conversation('b', 3, 'text'), conversation('c', 2)];
  for (const one of all) await store.save(one);
  equal((await store.list()).map(({title}) => title), ['b', 'c', 'a']);
  await store.remove(all[1].id);
  equal((await store.list()).map(({title}) => title), ['c', 'a']);
  equal(await store.load(all[1].id), null);
  const texts = store.database.transaction('texts').objectStore('texts').getAllKeys();
  await new Promise((resolve) => { texts.onsuccess = resolve; });
  equal(texts.result, [], 'its documents are gone, too');
  for (const one of all) await store.remove(one.id);
});

test('what another tab has kept meanwhile is not written over', async () => {
  const [one, other] = [await ConversationStore.open(), await ConversationStore.open()];
  const mine = conversation('mine', 1);
  mine.revision = await one.save(mine);
  const theirs = {...await other.load(mine.id), title: 'theirs'};
  equal(await other.save(theirs), 2);
  equal(await one.save({...mine, title: 'mine again'}), null);
  equal((await one.load(mine.id)).title, 'theirs');
  await other.remove(mine.id);
  equal(await one.save(mine), null, 'nor what it has deleted');
  equal(await one.list(), []);
});

test('a failure says what to do, and changes nothing', async () => {
  const store = await ConversationStore.open();
  const kept = conversation('kept', 1);
  kept.revision = await store.save(kept);
  const original = IDBObjectStore.prototype.put;
  IDBObjectStore.prototype.put = function put(value, ...key) {
    if (this.name === 'heads') throw new DOMException('full', 'QuotaExceededError');
    return original.call(this, value, ...key);
  };
  let problem = null;
  try {
    await store.save({...kept, turns: []});
  } catch (error) {
    problem = error;
  } finally {
    IDBObjectStore.prototype.put = original;
  }
  isTrue(problem?.message.includes('no room') && problem.detail.includes('save this one as a file'), String(problem));
  equal((await store.load(kept.id)).turns.length, 1, 'the body is as it was');
  equal(await store.save(kept), 2);
  await store.remove(kept.id);
});
