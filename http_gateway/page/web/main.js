// The page: questions, their answers, and what the server is doing.
import {Answer, comparison} from './answer.js';
import * as api from './api.js';
import {LivePanel} from './live_panel.js';
import {LONG_TEXT, LongDocument} from './long_document.js';
import {count, element, share} from './text.js';

const POLL_MS = 1000;
const POLL_FAILED_MS = 3000;
const STEPS_TOLD = 4;  // of the reading, to a screen reader

const at = (id) => document.getElementById(id);
const turns = [];  // {question, answers: [Answer, ...]}
let running = null;  // AbortController of the answer that is being written
// Questions about one document go to the same server, where a balancer stands before several.
let contextName = newContextName();

function newContextName() {
  return `page-${Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, '0')).join('')}`;
}

function announce(text) {
  at('announcer').textContent = text;
}

const reading = new LongDocument(announce, () => {
  contextName = newContextName();
});

// ---- the conversation ----

function chosenPolicies() {
  const {value} = document.querySelector('input[name=policy]:checked');
  return value === 'both' ? ['wave', 'full'] : [value];
}

// What the model is told for an answer to `turn` under `policy`: of earlier turns the answer of the
// same policy, if there is one.
function messagesFor(turn, policy) {
  const messages = [];
  if (turn.document !== '') messages.push({role: 'system', content: turn.document});
  for (const earlier of turns) {
    if (earlier === turn) break;
    const told = earlier.answers.filter((answer) => answer.text !== '');
    const answer = told.find((one) => one.policy === policy) ?? told[0];
    if (!answer) continue;
    messages.push({role: 'user', content: earlier.question}, {role: 'assistant', content: answer.text.trim()});
  }
  messages.push({role: 'user', content: turn.question});
  return messages;
}

function sampling() {
  const options = {};
  if (at('max-tokens').value !== '') options.max_tokens = at('max-tokens').valueAsNumber;
  if (at('temperature').value !== '') options.temperature = at('temperature').valueAsNumber;
  return options;
}

function nearEnd() {
  const box = at('conversation');
  return box.scrollHeight - box.scrollTop - box.clientHeight < 80;
}

function keepEnd(change) {
  const follow = nearEnd();
  change();
  if (follow) at('conversation').scrollTop = at('conversation').scrollHeight;
}

function showRunning(isRunning) {
  const hadFocus = document.activeElement === at('send') || document.activeElement === at('stop');
  at('send').hidden = isRunning;
  at('stop').hidden = !isRunning;
  at('new-chat').disabled = isRunning || turns.length === 0;
  if (hadFocus) at(isRunning ? 'stop' : 'question').focus();
}

function askQuestion(question) {
  const turn = {
    question, document: reading.text, answers: chosenPolicies().map((policy) => new Answer(policy, keepEnd)),
    seed: crypto.getRandomValues(new Uint32Array(1))[0], verdict: element('p', 'verdict', ''),
  };
  turn.verdict.hidden = true;
  turns.push(turn);
  const both = element('div', `answers${turn.answers.length > 1 ? ' both' : ''}`,
    ...turn.answers.map((answer) => answer.element));
  const asked = element('div', 'question', element('h3', 'unseen', 'You'), element('p', '', question));
  if (reading.text !== '') asked.append(element('p', 'about', `about ${reading.name}`));
  at('welcome').hidden = true;
  at('turns').append(element('li', '', asked, both, turn.verdict));
  at('conversation').scrollTop = at('conversation').scrollHeight;
  answerAll(turn);
}

// One after the other.
async function answerAll(turn) {
  running = new AbortController();
  const {signal} = running;
  showRunning(true);
  const waiting = turn.answers.filter((answer) => answer.reason === null);
  waiting.slice(1).forEach((answer) => answer.waitForOther());
  let goesOn = true;
  for (const answer of waiting) {
    if (goesOn) {
      goesOn = await answerOne(turn, answer, signal);
    } else {
      answer.skip('not asked');
    }
  }
  running = null;
  const [wave, full] = turn.answers;
  const verdict = full ? comparison(wave, full) : null;
  keepEnd(() => {
    turn.verdict.textContent = verdict ?? '';
    turn.verdict.hidden = verdict === null;
  });
  if (verdict !== null) announce(verdict);
  showRunning(false);
}

// Returns whether it came to its end.
async function answerOne(turn, answer, signal) {
  let told = 0;
  answer.begin(performance.now());
  announce('The question is sent.');
  try {
    const request = {
      messages: messagesFor(turn, answer.policy), policy: answer.policy, seed: turn.seed,
      context: contextName, ...sampling(),
    };
    for await (const chunk of api.chat(request, signal)) {
      if (chunk.progress) {
        const part = answer.progress(chunk.progress);
        const step = Math.floor(part * STEPS_TOLD);
        if (step > told && step < STEPS_TOLD) announce(`${share(part)} is read.`);
        told = step;
      }
      answer.add(chunk, performance.now());
    }
    keepEnd(() => answer.finish());
    announce(`Answer: ${answer.text.trim().slice(0, 1000)}`);
    return true;
  } catch (problem) {
    if (signal.aborted) {
      answer.stop();
      announce('Stopped.');
      return false;
    }
    if (!(problem instanceof api.Problem)) throw problem;
    keepEnd(() => answer.fail(problem, () => retry(turn)));
    if (problem.status === 401) lookAgain();
    return false;
  }
}

// Asks again what has not come to its end.
function retry(turn) {
  if (running !== null) return;
  turn.answers = turn.answers.map((old) => {
    if (old.reason !== null) return old;
    const fresh = new Answer(old.policy, keepEnd);
    old.element.replaceWith(fresh.element);
    return fresh;
  });
  answerAll(turn);
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
  if (running !== null || question === '') {
    at('question').focus();
    return;
  }
  for (const id of ['max-tokens', 'temperature']) {
    if (!at(id).checkValidity()) {
      at('settings').open = true;
      at(id).reportValidity();
      return;
    }
  }
  at('question').value = '';
  fitQuestion();
  askQuestion(question);
});

at('question').addEventListener('input', fitQuestion);
at('question').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at('composer').requestSubmit();
  }
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape') running?.abort();
});
at('stop').addEventListener('click', () => running?.abort());

at('new-chat').addEventListener('click', () => {
  turns.length = 0;
  at('turns').replaceChildren();
  at('welcome').hidden = false;
  showRunning(false);
  at('question').focus();
  announce('A new chat.');
});

// ---- documents from elsewhere ----

document.addEventListener('paste', (event) => {
  if (event.target instanceof HTMLInputElement) return;
  const [file] = event.clipboardData.files;
  const text = event.clipboardData.getData('text/plain');
  if (file && text === '') {
    event.preventDefault();
    reading.takeFile(file);
  } else if (text.length >= LONG_TEXT) {
    event.preventDefault();
    reading.take('Pasted text', text);
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
  const [file] = event.dataTransfer.files;
  const text = event.dataTransfer.getData('text/plain');
  if (file) {
    reading.takeFile(file);
  } else if (text !== '') {
    reading.take('Dropped text', text);
  }
});

// ---- the server ----

const panel = new LivePanel();
let timer = null;
let looking = null;

function showConnection(state, text) {
  const shown = at('connection');
  if (shown.textContent === text) return;
  shown.dataset.state = state;
  shown.textContent = text;
}

async function look() {
  looking?.abort();
  looking = new AbortController();
  const {signal} = looking;
  try {
    const stats = await api.stats(signal);
    at('model').textContent = stats.model;
    at('model').title = stats.device;
    at('max-tokens').placeholder = count(stats.default_max_tokens);
    showConnection('good', 'Ready');
    showKeyProblem(null);
    panel.show(stats, performance.now());
    if (!reading.isCounted) reading.countAgain();
    return POLL_MS;
  } catch (problem) {
    if (!(problem instanceof api.Problem)) return null;  // another look has begun
    panel.forget();
    const texts = {0: 'Not reachable', 401: api.hasKey() ? 'Key not accepted' : 'Key needed', 503: 'Not ready'};
    showConnection('bad', texts[problem.status] ?? problem.message);
    if (problem.status === 401) showKeyProblem(problem);
    return POLL_FAILED_MS;
  }
}

function showKeyProblem(problem) {
  const wasWrong = at('key').getAttribute('aria-invalid') === 'true';
  at('key').setAttribute('aria-invalid', problem !== null);
  at('key-note').classList.toggle('field-problem', problem !== null);
  at('key-note').textContent = problem !== null ? `${problem.message}.`
    : 'Kept in this tab until it is closed, and sent to this server alone.';
  if (problem !== null && !wasWrong) at('settings').open = true;
}

// Now, and from then on as long as somebody sees the page.
async function lookAgain() {
  clearTimeout(timer);
  if (document.visibilityState !== 'visible') return;
  const pause = await look();
  if (pause === null) return;
  clearTimeout(timer);
  timer = setTimeout(lookAgain, pause);
}
document.addEventListener('visibilitychange', lookAgain);

at('key').value = api.storedKey();
at('options').addEventListener('submit', (event) => {
  event.preventDefault();
  at('question').focus();  // which is a change of the field, if it has changed
});
at('key').addEventListener('change', () => {
  api.setKey(at('key').value);
  lookAgain();
});

// On a narrow screen the conversation comes first.
const isWide = window.matchMedia('(min-width: 60rem)').matches;
at('live').open = isWide;
lookAgain();
if (isWide) at('question').focus();
