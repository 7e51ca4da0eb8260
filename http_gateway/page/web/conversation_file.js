// Conversations as files: JSON with all that there is, documents too. Nothing here touches the page.
import {NUMBERS, POLICIES, newContext, newId} from './conversation.js';
import {Problem} from './problem.js';
import {count} from './text.js';

export const FORMAT = 'retroinfer-conversation';
export const VERSION = 1;
// A file is read whole, and kept by the browser.
export const FILE_BYTES_MAX = 256 * 1024 * 1024;
const DOCUMENTS_MAX = 1000;
const TURNS_MAX = 100000;
const TEXT_MAX = 64 * 1024 * 1024;
const NAME_MAX = 1000;

// Without what only this browser needs.
export function toFile({title, createdAt, changedAt, settings, documents, turns}) {
  return `${JSON.stringify({
    format: FORMAT, version: VERSION, title, createdAt, changedAt, settings,
    documents: documents.map(({name, text}) => ({name, text})), turns,
  }, null, 1)}\n`;
}

class Reader {
  constructor(where) {
    this.where = where;
  }

  fail(what) {
    throw new Problem('This file is no conversation of this page', `${this.where}: ${what}.`);
  }

  // `fields`: name -> function of the value and of where it stands. Returns an object of these.
  object(value, fields) {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) this.fail('an object is needed');
    for (const name of Object.keys(value)) {
      if (!Object.hasOwn(fields, name)) this.fail(`"${name.slice(0, 100)}" is not known to this page`);
    }
    return Object.fromEntries(Object.entries(fields).map(([name, read]) =>
      [name, read(Object.hasOwn(value, name) ? value[name] : undefined, new Reader(`${this.where}.${name}`))]));
  }
}

function text(most) {
  return (value, reader) => {
    if (typeof value !== 'string') reader.fail('a text is needed');
    if (value.length > most) {
      reader.fail(`at most ${count(most)} characters are taken, there are ${count(value.length)}`);
    }
    return value;
  };
}

function number(least, most) {
  return (value, reader) => {
    if (typeof value !== 'number' || !(value >= least && value <= most)) {
      reader.fail(`a number from ${least} to ${most} is needed`);
    }
    return value;
  };
}

function oneOf(choices) {
  return (value, reader) => {
    if (!choices.includes(value)) reader.fail(`one of ${choices.join(', ')} is needed`);
    return value;
  };
}

function orNull(read) {
  return (value, reader) => (value === null ? null : read(value, reader));
}

function list(most, read) {
  return (value, reader) => {
    if (!Array.isArray(value)) reader.fail('a list is needed');
    if (value.length > most) reader.fail(`at most ${count(most)} entries are taken, there are ${count(value.length)}`);
    return value.map((entry, index) => read(entry, new Reader(`${reader.where}[${index}]`)));
  };
}

function object(fields) {
  return (value, reader) => reader.object(value, fields);
}

const amount = number(0, 1e15);
const figures = object(Object.fromEntries(
  ['firstMs', 'perSecond', 'written', 'cached', 'prompt', 'kvShare', 'unseenMean', 'unseenLargest']
    .map((name) => [name, orNull(amount)])));
const answer = object({
  policy: oneOf(['wave', 'full']), text: text(TEXT_MAX), thought: text(TEXT_MAX),
  outcome: oneOf(['done', 'stopped', 'failed', 'skipped', null]), reason: orNull(text(NAME_MAX)),
  figures: orNull(figures),
});
const turn = object({
  question: text(TEXT_MAX), about: list(DOCUMENTS_MAX, text(NAME_MAX)), seed: number(0, 2 ** 32 - 1),
  answers: list(2, answer),
});
const settings = object({
  systemPrompt: text(TEXT_MAX), policy: oneOf(POLICIES),
  ...Object.fromEntries(Object.entries(NUMBERS).map(([name, [, least, most]]) => [name, orNull(number(least, most))])),
});
const file = object({
  format: oneOf([FORMAT]), version: oneOf([VERSION]), title: text(NAME_MAX), createdAt: amount, changedAt: amount,
  settings, documents: list(DOCUMENTS_MAX, object({name: text(NAME_MAX), text: text(TEXT_MAX)})),
  turns: list(TURNS_MAX, turn),
});

// A conversation of its own, with what the file says. Throws a Problem that names what is wrong.
export function fromFile(content) {
  let value;
  try {
    value = JSON.parse(content);
  } catch {
    throw new Problem('This file is no conversation of this page', 'It is not JSON, or not all of it is there.');
  }
  const read = file(value, new Reader('file'));
  return {
    id: newId(), title: read.title, createdAt: read.createdAt, changedAt: read.changedAt, revision: 0,
    context: newContext(), settings: read.settings, turns: read.turns,
    documents: read.documents.map((document) => ({id: newId(), ...document, tokens: null})),
  };
}
