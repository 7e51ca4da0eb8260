// A question with its answers on the page, and what can be done with them.
import {Answer} from './answer.js';
import {comparison} from './answer_figures.js';
import {element} from './text.js';

function button(label, action) {
  const made = element('button', 'small', label);
  made.type = 'button';
  made.addEventListener('click', action);
  return made;
}

export class TurnView {
  // `actions`: {edit(turn, question), regenerate(turn), laterTurns(turn), keepEnd}; the first two are
  // for when nothing runs.
  constructor(turn, actions) {
    this.turn = turn;
    this.actions = actions;
    this.question = element('p', '', turn.question);
    this.editButton = button('Edit', () => this.edit());
    this.asked = element('div', 'question', element('h3', 'unseen', 'You'), this.question);
    if (turn.about.length > 0) this.asked.append(element('p', 'about', `about ${turn.about.join(', ')}`));
    this.form = null;
    this.answers = turn.answers.map((saved) => new Answer(saved, actions.keepEnd));
    this.both = element('div', 'answers', ...this.answers.map((answer) => answer.element));
    this.both.classList.toggle('both', this.answers.length > 1);
    this.regenerateButton = button('Regenerate', () => actions.regenerate(turn));
    this.verdict = element('p', 'verdict', '');
    this.element = element('li', '', element('div', 'asked', this.asked, this.editButton), this.both, this.verdict,
      this.regenerateButton);
    this.showVerdict();
  }

  // `isLast`: nothing was asked behind it.
  allow(isRunning, isLast) {
    this.editButton.hidden = isRunning;
    this.regenerateButton.hidden = isRunning || !isLast;
    if (isRunning) this.endEdit();
  }

  showVerdict() {
    const [wave, full] = this.turn.answers;
    const verdict = full ? comparison(wave, full) : null;
    this.verdict.textContent = verdict ?? '';
    this.verdict.hidden = verdict === null;
    return verdict;
  }

  // New answers in place of those that are given.
  replace(places, answers) {
    places.forEach((place, index) => {
      const fresh = new Answer(answers[index], this.actions.keepEnd);
      this.answers[place].element.replaceWith(fresh.element);
      this.answers[place] = fresh;
    });
    this.showVerdict();
  }

  edit() {
    if (this.form !== null) return;
    const field = element('textarea', '');
    field.value = this.turn.question;
    field.rows = Math.min(12, this.turn.question.split('\n').length + 1);
    field.setAttribute('aria-label', 'Question');
    const again = element('button', 'main', 'Ask again');
    again.type = 'submit';
    const later = this.actions.laterTurns(this.turn);
    const parts = [field, element('div', 'tools', button('Cancel', () => this.endEdit(true)), again)];
    if (later > 0) {
      const what = later === 1 ? 'The question behind it goes' : `The ${later} questions behind it go`;
      parts.splice(1, 0, element('p', 'note', `${what}, with what was answered.`));
    }
    this.form = element('form', 'edit', ...parts);
    this.form.addEventListener('submit', (event) => {
      event.preventDefault();
      const question = field.value.trim();
      if (question !== '') this.actions.edit(this.turn, question);
      else field.focus();
    });
    field.addEventListener('keydown', (event) => this.keyInEdit(event));
    this.question.hidden = true;
    this.editButton.hidden = true;
    this.asked.classList.add('editing');
    this.asked.append(this.form);
    field.focus();
  }

  keyInEdit(event) {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.form.requestSubmit();
    } else if (event.key === 'Escape') {
      event.stopPropagation();
      this.endEdit(true);
    }
  }

  endEdit(isCancelled = false) {
    if (this.form === null) return;
    this.form.remove();
    this.form = null;
    this.question.hidden = false;
    this.asked.classList.remove('editing');
    if (!isCancelled) return;
    this.editButton.hidden = false;
    this.editButton.focus();
  }
}
