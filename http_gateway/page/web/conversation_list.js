// The conversations that this browser keeps: the list, and what can be done with them.
import {newConversation, newId, toMarkdown} from './conversation.js';
import {FILE_BYTES_MAX, fromFile, toFile} from './conversation_file.js';
import {ConversationStore} from './conversation_store.js';
import {askText, confirm} from './dialog.js';
import {Problem} from './problem.js';
import {count, element} from './text.js';

const OPEN_KEY = 'retroinfer-conversation';  // of the tab: shown again when it is loaded again
const CHANNEL = 'retroinfer-conversations';  // tells other tabs to look again

const at = (id) => document.getElementById(id);
const day = new Intl.DateTimeFormat('en', {dateStyle: 'medium', timeStyle: 'short'});

function download(name, type, text) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], {type}));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

function fileName({title}, ending) {
  const plain = title.replace(/[^\p{L}\p{N} ._-]+/gu, ' ').trim().replace(/\s+/g, '-').replace(/^\.+/, '');
  return `${plain || 'conversation'}.${ending}`;
}

export class ConversationList {
  // `hooks`: {announce(text), show(conversation)}
  constructor(hooks) {
    this.hooks = hooks;
    this.store = null;
    this.current = null;
    this.saving = Promise.resolve();
    this.isWanted = false;  // a save that has not begun yet
    this.channel = new BroadcastChannel(CHANNEL);
    this.channel.addEventListener('message', () => this.draw());
    at('new-chat').addEventListener('click', () => this.startNew());
    at('rename').addEventListener('click', () => this.rename());
    at('delete').addEventListener('click', () => this.remove());
    at('export-json').addEventListener('click', () =>
      download(fileName(this.current, 'json'), 'application/json', toFile(this.current)));
    at('export-markdown').addEventListener('click', () =>
      download(fileName(this.current, 'md'), 'text/markdown', toMarkdown(this.current)));
    at('import').addEventListener('click', () => at('import-file').click());
    at('import-file').addEventListener('change', () => {
      const [file] = at('import-file').files;
      at('import-file').value = '';
      if (file) this.takeFile(file);
    });
  }

  // Shows what this tab showed before, else a new conversation.
  async open() {
    const id = sessionStorage.getItem(OPEN_KEY);
    this.show(newConversation(Date.now()));
    const shown = this.current;
    try {
      this.store = await ConversationStore.open();
      const kept = id === null ? null : await this.store.load(id);
      // Unless something was asked meanwhile.
      if (kept && this.current === shown && shown.turns.length === 0) this.show(kept);
      if (shown.turns.length > 0) this.keep();
      await this.draw();
    } catch (problem) {
      this.tell(problem);
    }
  }

  show(conversation) {
    this.current = conversation;
    this.hooks.show(conversation);
    this.remember();
    this.allow(false);
    this.markCurrent();
  }

  remember() {
    if (this.current.revision > 0) sessionStorage.setItem(OPEN_KEY, this.current.id);
    else sessionStorage.removeItem(OPEN_KEY);
  }

  // What is possible while an answer is written.
  allow(isRunning) {
    const isEmpty = this.current.turns.length === 0;
    for (const id of ['new-chat', 'rename', 'delete', 'export-json', 'export-markdown']) {
      at(id).disabled = isRunning || isEmpty;
    }
    at('import').disabled = isRunning;
    for (const button of at('conversations').querySelectorAll('button')) button.disabled = isRunning;
  }

  startNew() {
    this.show(newConversation(Date.now(), this.current));
    at('question').focus();
    this.hooks.announce('A new chat.');
  }

  // Soon, if there is something to keep; of several wishes one is enough.
  keep() {
    if (this.store === null || this.isWanted || this.current.turns.length === 0) return this.saving;
    this.isWanted = true;
    const conversation = this.current;
    this.saving = this.saving.then(async () => {
      this.isWanted = false;
      try {
        await this.save(conversation);
        this.tell(null);
      } catch (problem) {
        this.tell(problem);
      }
    });
    return this.saving;
  }

  async save(conversation) {
    let revision = await this.store.save(conversation);
    if (revision === null) {
      // Another tab wrote on or deleted it: both are kept.
      Object.assign(conversation, {id: newId(), revision: 0, title: `${conversation.title} (copy)`});
      revision = await this.store.save(conversation);
      this.hooks.announce('Another tab has changed this conversation; what is here is kept as a copy.');
    }
    conversation.revision = revision;
    if (conversation === this.current) this.remember();
    this.channel.postMessage('changed');
    await this.draw();
  }

  async draw() {
    if (this.store === null) return;
    let heads;
    try {
      heads = await this.store.list();
    } catch (problem) {
      this.tell(problem);
      return;
    }
    at('conversations').replaceChildren(...heads.map((head) => this.entry(head)));
    at('conversations-none').hidden = heads.length > 0;
    at('conversations-short').textContent = heads.length > 0 ? count(heads.length) : '';
    this.markCurrent();
  }

  entry({id, title, changedAt}) {
    const button = element('button', 'conversation-entry', title);
    button.type = 'button';
    button.title = `${title}\n${day.format(changedAt)}`;
    button.dataset.id = id;
    button.disabled = at('import').disabled;
    button.addEventListener('click', () => this.choose(id));
    return element('li', '', button);
  }

  markCurrent() {
    for (const button of at('conversations').querySelectorAll('button')) {
      if (button.dataset.id === this.current.id) button.setAttribute('aria-current', 'true');
      else button.removeAttribute('aria-current');
    }
  }

  async choose(id) {
    try {
      await this.saving;
      const kept = await this.store.load(id);
      if (kept === null) {
        await this.draw();  // another tab has deleted it
        return;
      }
      this.show(kept);
      this.tell(null);
      at('question').focus();
      this.hooks.announce(`Conversation: ${kept.title}`);
    } catch (problem) {
      this.tell(problem);
    }
  }

  async rename() {
    const title = await askText('Rename the conversation', 'Name', this.current.title);
    if (title === null) return;
    this.current.title = title;
    await this.keep();
    this.hooks.announce(`The conversation is named ${title}.`);
  }

  async remove() {
    const {id, title} = this.current;
    const what = `“${title}” and its documents are gone from this browser then.`;
    if (!await confirm('Delete the conversation', what, 'Delete')) return;
    try {
      await this.saving;
      if (this.store !== null) await this.store.remove(id);
    } catch (problem) {
      this.tell(problem);
      return;
    }
    this.channel.postMessage('changed');
    const fresh = newConversation(Date.now(), this.current);
    fresh.documents = [];
    this.show(fresh);
    await this.draw();
    at('question').focus();
    this.hooks.announce('The conversation is deleted.');
  }

  async takeFile(file) {
    try {
      if (file.size > FILE_BYTES_MAX) {
        throw new Problem(`${file.name} is too large`, `It has ${count(file.size / 1048576)} MiB; 256 MiB are taken.`);
      }
      this.show(fromFile(await file.text()));
      this.tell(null);
      await this.keep();
      this.hooks.announce(`Conversation: ${this.current.title}`);
    } catch (problem) {
      this.tell(problem);
    }
  }

  tell(problem) {
    if (problem !== null && !(problem instanceof Problem)) throw problem;
    at('conversations-problem').hidden = problem === null;
    at('conversations-problem').textContent = problem === null ? '' : `${problem.message}. ${problem.detail}`.trim();
    if (problem !== null) at('conversation-card').open = true;
  }
}
