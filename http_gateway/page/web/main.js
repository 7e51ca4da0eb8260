// The page: puts its parts together.
import {Chat} from './chat.js';
import {newContext} from './conversation.js';
import {ConversationList} from './conversation_list.js';
import {Documents, LONG_TEXT} from './documents.js';
import {LivePanel} from './live_panel.js';
import {ServerWatch} from './server_watch.js';
import {Settings} from './settings.js';

const at = (id) => document.getElementById(id);

function announce(text) {
  at('announcer').textContent = text;
}

const panel = new LivePanel();
const watch = new ServerWatch({
  seen(stats) {
    settings.showDefaults(stats);
    settings.showKeyProblem(null);
    panel.show(stats, performance.now());
    documents.setLimit(stats.max_model_len);
    documents.countAgain();
  },
  failed(problem) {
    panel.forget();
    if (problem.status === 401) settings.showKeyProblem(problem);
  },
});
const settings = new Settings({changed: () => list.keep(), keyChanged: () => watch.lookAgain()});
const documents = new Documents(announce, () => {
  list.current.context = newContext();
  list.keep();
});
const chat = new Chat({
  announce, changed: () => list.keep(), running: showRunning, refused: () => watch.lookAgain(),
});
const list = new ConversationList({
  announce,
  show(conversation) {
    documents.show(conversation.documents);
    settings.show(conversation.settings);
    chat.show(conversation);
  },
});

function showRunning(isRunning) {
  // Focus that was on what goes away; a question that is being typed keeps it.
  const {activeElement: focused} = document;
  const lostFocus = [at('send'), at('stop'), document.body].includes(focused) || focused.closest('[hidden]') !== null;
  at('send').hidden = isRunning;
  at('stop').hidden = !isRunning;
  list.allow(isRunning);
  if (lostFocus) at(isRunning ? 'stop' : 'question').focus();
}

// ---- the form ----

function fitQuestion() {
  const box = at('question');
  box.style.height = 'auto';
  box.style.height = `${Math.min(box.scrollHeight + 2, window.innerHeight * 0.3)}px`;
}

at('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  const question = at('question').value.trim();
  if (chat.isRunning || question === '') {
    at('question').focus();
    return;
  }
  if (!settings.check()) return;
  at('question').value = '';
  fitQuestion();
  chat.ask(question);
});

at('question').addEventListener('input', fitQuestion);
at('question').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at('composer').requestSubmit();
  }
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape') chat.stop();
});
at('stop').addEventListener('click', () => chat.stop());

// A tab that goes away may not come back: what is written so far is kept.
document.addEventListener('visibilitychange', () => {
  if (document.visibilityState === 'hidden') list.keep();
});

// ---- documents from elsewhere ----

document.addEventListener('paste', (event) => {
  if (event.target instanceof HTMLInputElement) return;
  const files = [...event.clipboardData.files];
  const text = event.clipboardData.getData('text/plain');
  if (files.length > 0 && text === '') {
    event.preventDefault();
    documents.takeFiles(files);
  } else if (text.length >= LONG_TEXT && event.target !== at('system-prompt')) {
    event.preventDefault();
    documents.take('Pasted text', text);
  }
});

let dragDepth = 0;
function showDrop(depth) {
  dragDepth = Math.max(0, depth);
  at('drop').hidden = dragDepth === 0;
}
document.addEventListener('dragenter', (event) => {
  event.preventDefault();
  showDrop(dragDepth + 1);
});
document.addEventListener('dragleave', () => showDrop(dragDepth - 1));
document.addEventListener('dragover', (event) => event.preventDefault());
document.addEventListener('drop', (event) => {
  event.preventDefault();
  showDrop(0);
  const files = [...event.dataTransfer.files];
  const text = event.dataTransfer.getData('text/plain');
  if (files.length > 0) {
    documents.takeFiles(files);
  } else if (text !== '') {
    documents.take('Dropped text', text);
  }
});

// ---- the beginning ----

// On a narrow screen the conversation comes first.
const isWide = window.matchMedia('(min-width: 60rem)').matches;
at('live').open = isWide;
at('conversation-card').open = isWide;
list.open();
watch.lookAgain();
if (isWide) at('question').focus();
