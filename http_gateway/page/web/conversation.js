// A conversation: what was asked, answered and chosen, as plain data. Nothing here touches the page.
//
//   {id, title, createdAt, changedAt, revision, context, settings, documents, turns}
//   settings   {systemPrompt, policy, maxTokens, temperature, retrievalRatio, estimationRatio,
//              maxUnseenMass}; a number may be null: the server's
//   documents  [{id, name, text, tokens}]; tokens: null if not counted
//   turns      [{question, about, seed, answers}]; about: names of the documents that there were
//   answers    [{policy, text, thought, outcome, reason, figures}]; outcome: 'done' 'stopped'
//              'failed' 'skipped', or null before its end; figures: null, or
//              {firstMs, perSecond, written, cached, prompt, kvShare, unseenMean, unseenLargest}
import {share} from './text.js';

const TITLE_MAX = 60;
export const POLICIES = ['wave', 'full', 'both'];
export const NUMBERS = {  // name -> [its field in a request, least, most]
  maxTokens: ['max_tokens', 1, 2147483647],
  temperature: ['temperature', 0, 100],
  retrievalRatio: ['retrieval_ratio', 0, 1],
  estimationRatio: ['estimation_ratio', 0, 1],
  maxUnseenMass: ['max_unseen_mass', 0, 0.999999],
};
const OF_WAVE = ['retrievalRatio', 'estimationRatio', 'maxUnseenMass'];

export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

export function newSettings() {
  const numbers = Object.fromEntries(Object.keys(NUMBERS).map((name) => [name, null]));
  return {systemPrompt: '', policy: 'wave', ...numbers};
}

// `before`: a conversation whose settings and documents it goes on with.
export function newConversation(now, before = null) {
  return {
    id: newId(), title: '', createdAt: now, changedAt: now, revision: 0,
    context: before?.context ?? newContext(), settings: {...(before?.settings ?? newSettings())},
    documents: [...(before?.documents ?? [])], turns: [],
  };
}

// Questions about one document go to the same server, where a balancer stands before several.
export function newContext() {
  return `page-${newId()}`;
}

export function newAnswer(policy) {
  return {policy, text: '', thought: '', outcome: null, reason: null, figures: null};
}

export function policiesOf(settings) {
  return settings.policy === 'both' ? ['wave', 'full'] : [settings.policy];
}

export function titleOf(question) {
  const line = question.trim().replace(/\s+/g, ' ');
  const characters = Array.from(line.slice(0, 2 * (TITLE_MAX + 1)));
  return characters.length > TITLE_MAX ? `${characters.slice(0, TITLE_MAX - 1).join('').trimEnd()}…` : line;
}

// The documents come first and the system prompt behind them, so that another prompt, or one more
// document, does not make the server read again what it has read.
export function systemMessage(documents, systemPrompt) {
  let text = '';
  documents.forEach((document, index) => {
    if (index > 0) text += `\n\n[End of ${documents[index - 1].name}. Beginning of ${document.name}.]\n\n`;
    text += document.text;
  });
  const prompt = systemPrompt.trim();
  if (prompt === '') return text;
  return text === '' ? prompt : `${text}\n\n${prompt}`;
}

// What the model is told for an answer to `turn` under `policy`: of earlier turns the answer of the
// same policy, if there is one.
export function messagesFor({settings, documents, turns}, turn, policy) {
  const messages = [];
  const system = systemMessage(documents, settings.systemPrompt);
  if (system !== '') messages.push({role: 'system', content: system});
  for (const earlier of turns) {
    if (earlier === turn) break;
    const told = earlier.answers.filter((answer) => answer.text.trim() !== '');
    const answer = told.find((one) => one.policy === policy) ?? told[0];
    if (!answer) continue;
    messages.push({role: 'user', content: earlier.question}, {role: 'assistant', content: answer.text.trim()});
  }
  messages.push({role: 'user', content: turn.question});
  return messages;
}

export function requestFor(conversation, turn, policy) {
  const request = {
    messages: messagesFor(conversation, turn, policy), policy, seed: turn.seed, context: conversation.context,
  };
  for (const [name, [field]] of Object.entries(NUMBERS)) {
    const value = conversation.settings[name];
    if (value !== null && (policy === 'wave' || !OF_WAVE.includes(name))) request[field] = value;
  }
  return request;
}

// ---- for people ----

const POLICY_NAMES = {wave: 'Wave', full: 'Full'};

function figuresLine({figures}) {
  if (figures === null) return '';
  const said = [];
  if (figures.prompt !== null) said.push(`${figures.cached} of ${figures.prompt} tokens cached`);
  if (figures.kvShare !== null) said.push(`${share(figures.kvShare)} of the KV read`);
  if (figures.unseenMean !== null) said.push(`${share(figures.unseenMean)} of the mass unseen`);
  return said.length > 0 ? `\n\n*${said.join(', ')}*` : '';
}

export function toMarkdown({title, settings, documents, turns}) {
  const parts = [`# ${title || 'Conversation'}`];
  const prompt = settings.systemPrompt.trim();
  if (prompt !== '') parts.push(`System prompt:\n\n> ${prompt.replaceAll('\n', '\n> ')}`);
  if (documents.length > 0) parts.push(`Documents:\n\n${documents.map(({name}) => `* ${name}`).join('\n')}`);
  for (const {question, answers} of turns) {
    parts.push(`## Question\n\n${question}`);
    for (const answer of answers) {
      const cut = answer.outcome === 'done' ? '' : `\n\n*(${answer.outcome ?? 'not ended'})*`;
      parts.push(`## Answer (${POLICY_NAMES[answer.policy]})\n\n${answer.text.trim()}${cut}${figuresLine(answer)}`);
    }
  }
  return `${parts.join('\n\n')}\n`;
}
