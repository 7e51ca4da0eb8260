// Conversations in the browser (IndexedDB): heads for the list, bodies, and texts of documents,
// which are written once.
//
// Errors:  a Problem that says what can be done; what was kept before is as it was.
import {Problem} from './problem.js';

const NAME = 'retroinfer';
const VERSION = 1;
const STORES = ['heads', 'bodies', 'texts'];

function problemOf(error) {
  if (error instanceof Problem) return error;
  if (error?.name === 'QuotaExceededError') {
    return new Problem('This browser has no room for the conversation',
      'It is here until the tab is closed. Delete others or their documents, or save this one as a file.');
  }
  return new Problem('This browser keeps no conversations',
    `What there is ends with the tab. ${error?.message ?? ''}`.trim());
}

function resultOf(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function textsOf(id) {
  return IDBKeyRange.bound([id], [id, []]);
}

export class ConversationStore {
  static async open() {
    try {
      const request = indexedDB.open(NAME, VERSION);
      request.onupgradeneeded = () => {
        request.result.createObjectStore('heads', {keyPath: 'id'});
        request.result.createObjectStore('bodies', {keyPath: 'id'});
        request.result.createObjectStore('texts');  // [conversation, document] -> text
      };
      const database = await resultOf(request);
      database.onversionchange = () => database.close();  // a newer page is waiting for it
      return new ConversationStore(database);
    } catch (error) {
      throw problemOf(error);
    }
  }

  constructor(database) {
    this.database = database;
  }

  // Runs `work` with the three stores. All of it is done, or nothing.
  async transact(mode, work) {
    try {
      const transaction = this.database.transaction(STORES, mode);
      const ended = new Promise((resolve, reject) => {
        transaction.oncomplete = resolve;
        transaction.onabort = () => reject(transaction.error);
      });
      ended.catch(() => {});  // told below
      let result;
      try {
        result = await work(...STORES.map((name) => transaction.objectStore(name)));
      } catch (error) {
        try {
          transaction.abort();
        } catch {
          // It has ended by itself.
        }
        throw transaction.error ?? error;
      }
      await ended;
      return result;
    } catch (error) {
      throw problemOf(error);
    }
  }

  // [{id, title, changedAt, revision}], the newest first.
  async list() {
    const heads = await this.transact('readonly', (store) => resultOf(store.getAll()));
    return heads.sort((a, b) => b.changedAt - a.changedAt);
  }

  // null: there is none of this id.
  async load(id) {
    return this.transact('readonly', async (heads, bodies, texts) => {
      const [head, body] = await Promise.all([resultOf(heads.get(id)), resultOf(bodies.get(id))]);
      if (!head || !body) return null;
      // Another model may be served than the one whose tokens were counted.
      const documents = await Promise.all(body.documents.map(async (document) =>
        ({...document, tokens: null, text: await resultOf(texts.get([id, document.id]))})));
      return {...body, ...head, documents};
    });
  }

  // Returns: the revision that is kept now; null, and nothing is changed, if another tab has kept
  //          one behind that of `conversation`, or has deleted it.
  async save({id, title, changedAt, revision, documents, ...rest}) {
    return this.transact('readwrite', async (heads, bodies, texts) => {
      const kept = await resultOf(heads.get(id));
      if ((kept?.revision ?? 0) !== revision) return null;
      const keys = (await resultOf(texts.getAllKeys(textsOf(id)))).map(([, document]) => document);
      const known = new Set(keys);
      const wanted = new Set(documents.map((document) => document.id));
      const writes = documents.filter((document) => !known.has(document.id))
        .map((document) => texts.put(document.text, [id, document.id]));
      writes.push(...keys.filter((key) => !wanted.has(key)).map((key) => texts.delete([id, key])));
      writes.push(bodies.put({id, ...rest, documents: documents.map(({text, ...document}) => document)}));
      writes.push(heads.put({id, title, changedAt, revision: revision + 1}));
      await Promise.all(writes.map(resultOf));
      return revision + 1;
    });
  }

  async remove(id) {
    await this.transact('readwrite', (heads, bodies, texts) =>
      Promise.all([heads.delete(id), bodies.delete(id), texts.delete(textsOf(id))].map(resultOf)));
  }
}
