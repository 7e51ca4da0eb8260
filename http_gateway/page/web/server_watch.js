// Looks at the server as long as somebody sees the page.
import * as api from './api.js';
import {Problem} from './problem.js';

const POLL_MS = 1000;
const POLL_FAILED_MS = 3000;

const at = (id) => document.getElementById(id);

function showConnection(state, text) {
  const shown = at('connection');
  if (shown.textContent === text) return;
  shown.dataset.state = state;
  shown.textContent = text;
}

export class ServerWatch {
  // `hooks`: {seen(stats), failed(problem)}
  constructor(hooks) {
    this.hooks = hooks;
    this.timer = null;
    this.looking = null;
    document.addEventListener('visibilitychange', () => this.lookAgain());
  }

  // Now, and from then on.
  async lookAgain() {
    clearTimeout(this.timer);
    if (document.visibilityState !== 'visible') return;
    const pause = await this.look();
    if (pause === null) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.lookAgain(), pause);
  }

  // Returns: the milliseconds until the next look; null if another one has begun.
  async look() {
    this.looking?.abort();
    this.looking = new AbortController();
    try {
      const stats = await api.stats(this.looking.signal);
      at('model').textContent = stats.model;
      at('model').title = stats.device;
      showConnection('good', 'Ready');
      this.hooks.seen(stats);
      return POLL_MS;
    } catch (problem) {
      if (!(problem instanceof Problem)) return null;
      const texts = {0: 'Not reachable', 401: api.hasKey() ? 'Key not accepted' : 'Key needed', 503: 'Not ready'};
      showConnection('bad', texts[problem.status] ?? problem.message);
      this.hooks.failed(problem);
      return POLL_FAILED_MS;
    }
  }
}
