// The settings: the key, which is the tab's, and what each conversation has for itself.
import * as api from './api.js';
import {NUMBERS} from './conversation.js';
import {count} from './text.js';

const FIELDS = {  // setting -> id of its field
  maxTokens: 'max-tokens', temperature: 'temperature', retrievalRatio: 'retrieval-ratio',
  estimationRatio: 'estimation-ratio', maxUnseenMass: 'max-unseen-mass',
};

const at = (id) => document.getElementById(id);

export class Settings {
  // `hooks`: {changed() of the settings of the conversation, keyChanged()}
  constructor(hooks) {
    this.settings = null;
    for (const [name, id] of Object.entries(FIELDS)) {
      [, at(id).min, at(id).max] = NUMBERS[name];
      at(id).addEventListener('change', () => {
        if (!at(id).checkValidity()) return;  // told when a question is asked
        this.settings[name] = at(id).value === '' ? null : at(id).valueAsNumber;
        hooks.changed();
      });
    }
    at('system-prompt').addEventListener('change', () => {
      this.settings.systemPrompt = at('system-prompt').value;
      hooks.changed();
    });
    for (const choice of document.querySelectorAll('input[name=policy]')) {
      choice.addEventListener('change', () => {
        this.settings.policy = choice.value;
        hooks.changed();
      });
    }
    at('key').value = api.storedKey();
    at('key').addEventListener('change', () => {
      api.setKey(at('key').value);
      hooks.keyChanged();
    });
    at('options').addEventListener('submit', (event) => {
      event.preventDefault();
      at('question').focus();  // which is a change of the field, if it has changed
    });
  }

  // Those of another conversation; they are changed when the fields are.
  show(settings) {
    this.settings = settings;
    for (const [name, id] of Object.entries(FIELDS)) at(id).value = settings[name] ?? '';
    at('system-prompt').value = settings.systemPrompt;
    document.querySelector(`input[name=policy][value=${settings.policy}]`).checked = true;
  }

  // Returns whether all can be sent; shows what cannot.
  check() {
    const wrong = Object.values(FIELDS).find((id) => !at(id).checkValidity());
    if (wrong === undefined) return true;
    at('settings').open = true;
    at(wrong).reportValidity();
    return false;
  }

  showDefaults(stats) {
    at('max-tokens').placeholder = count(stats.default_max_tokens);
  }

  // null: the key is right, or none is wanted.
  showKeyProblem(problem) {
    const wasWrong = at('key').getAttribute('aria-invalid') === 'true';
    at('key').setAttribute('aria-invalid', problem !== null);
    at('key-note').classList.toggle('field-problem', problem !== null);
    at('key-note').textContent = problem !== null ? `${problem.message}.`
      : 'Kept in this tab until it is closed, and sent to this server alone.';
    if (problem !== null && !wasWrong) at('settings').open = true;
  }
}
