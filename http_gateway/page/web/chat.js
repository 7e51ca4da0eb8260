// The conversation on the page: asks, shows what comes, and keeps the data of it up to date.
import * as api from './api.js';
import {newAnswer, policiesOf, requestFor, titleOf} from './conversation.js';
import {Problem} from './problem.js';
import {share} from './text.js';
import {TurnView} from './turn_view.js';

const STEPS_TOLD = 4;  // of the reading, to a screen reader

const at = (id) => document.getElementById(id);

function nearEnd() {
  const box = at('conversation');
  return box.scrollHeight - box.scrollTop - box.clientHeight < 80;
}

function scrollToEnd() {
  at('conversation').scrollTop = at('conversation').scrollHeight;
}

function keepEnd(change) {
  const follow = nearEnd();
  change();
  if (follow) scrollToEnd();
}

export class Chat {
  // `hooks`: {announce(text), changed() when there is something to keep, running(isRunning),
  // refused() when the server did not take the key}
  constructor(hooks) {
    this.hooks = hooks;
    this.conversation = null;
    this.views = [];  // a TurnView for each turn
    this.running = null;  // AbortController of the answer that is being written
    this.actions = {
      edit: (turn, question) => this.editQuestion(turn, question), regenerate: (turn) => this.regenerate(turn),
      laterTurns: (turn) => this.conversation.turns.length - 1 - this.conversation.turns.indexOf(turn), keepEnd,
    };
  }

  get isRunning() {
    return this.running !== null;
  }

  stop() {
    this.running?.abort();
  }

  // REQUIRES: nothing runs.
  show(conversation) {
    this.conversation = conversation;
    for (const {answers} of conversation.turns) {
      // Of one that was being written when its tab was closed there is the beginning.
      for (const answer of answers) answer.outcome ??= 'stopped';
    }
    this.views = conversation.turns.map((turn) => new TurnView(turn, this.actions));
    at('turns').replaceChildren(...this.views.map((view) => view.element));
    at('welcome').hidden = this.views.length > 0;
    this.allow();
    scrollToEnd();
  }

  allow() {
    this.views.forEach((view, index) => view.allow(this.isRunning, index === this.views.length - 1));
  }

  ask(question) {
    const {conversation} = this;
    const turn = {
      question, about: conversation.documents.map((document) => document.name),
      seed: crypto.getRandomValues(new Uint32Array(1))[0], answers: policiesOf(conversation.settings).map(newAnswer),
    };
    if (conversation.title === '') conversation.title = titleOf(question);
    conversation.turns.push(turn);
    const view = new TurnView(turn, this.actions);
    this.views.push(view);
    at('welcome').hidden = true;
    at('turns').append(view.element);
    scrollToEnd();
    this.answerAll(view);
  }

  // Leaves out `turn` and what came behind it, and asks something else in its place.
  editQuestion(turn, question) {
    if (this.isRunning) return;
    const first = this.conversation.turns.indexOf(turn);
    this.conversation.turns.length = first;
    for (const view of this.views.splice(first)) view.element.remove();
    this.ask(question);
  }

  // Asks the same as something new: with the documents and settings of now, and other chances.
  regenerate(turn) {
    this.editQuestion(turn, turn.question);
  }

  // Asks again what has not come to its end.
  retry(view) {
    if (this.isRunning) return;
    const {answers} = view.turn;
    const places = answers.map((answer, place) => place).filter((place) => answers[place].outcome !== 'done');
    for (const place of places) answers[place] = newAnswer(answers[place].policy);
    view.replace(places, places.map((place) => answers[place]));
    this.answerAll(view);
  }

  // One after the other.
  async answerAll(view) {
    this.running = new AbortController();
    const {signal} = this.running;
    this.setRunning();
    const waiting = view.answers.filter((answer) => answer.saved.outcome === null);
    // What is changed meanwhile is for the next question.
    const {settings, documents} = this.conversation;
    const asked = {...this.conversation, settings: {...settings}, documents: [...documents]};
    waiting.slice(1).forEach((answer) => answer.waitForOther());
    let goesOn = true;
    for (const answer of waiting) {
      if (goesOn) {
        goesOn = await this.answerOne(asked, view, answer, signal);
      } else {
        answer.skip();
      }
    }
    this.running = null;
    let verdict = null;
    keepEnd(() => {
      verdict = view.showVerdict();
      this.setRunning();
    });
    if (verdict !== null) this.hooks.announce(verdict);
  }

  setRunning() {
    this.allow();
    this.conversation.changedAt = Date.now();
    this.hooks.changed();
    this.hooks.running(this.isRunning);
  }

  // `asked`: the conversation. Returns whether the answer came to its end.
  async answerOne(asked, view, answer, signal) {
    let told = 0;
    answer.begin(performance.now());
    this.hooks.announce('The question is sent.');
    try {
      const request = requestFor(asked, view.turn, answer.saved.policy);
      for await (const chunk of api.chat(request, signal)) {
        if (chunk.progress) {
          const part = answer.progress(chunk.progress);
          const step = Math.floor(part * STEPS_TOLD);
          if (step > told && step < STEPS_TOLD) this.hooks.announce(`${share(part)} is read.`);
          told = step;
        }
        answer.add(chunk, performance.now());
      }
      keepEnd(() => answer.finish());
      this.hooks.announce(`Answer: ${answer.saved.text.trim().slice(0, 1000)}`);
      return true;
    } catch (problem) {
      if (signal.aborted) {
        keepEnd(() => answer.stop());
        this.hooks.announce('Stopped.');
        return false;
      }
      if (!(problem instanceof Problem)) throw problem;
      keepEnd(() => answer.fail(problem, () => this.retry(view)));
      if (problem.status === 401) this.hooks.refused();
      return false;
    }
  }
}
