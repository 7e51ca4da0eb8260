// What the server is doing, from two looks at its counters.
import {count, rate, share} from './text.js';

const SAMPLES = 60;
const SVG = 'http://www.w3.org/2000/svg';
const WIDTH = 240;
const HEIGHT = 44;

const at = (id) => document.getElementById(id);

// Pages are asked for in bursts: one number for all the samples that are kept.
function shareOf(samples) {
  const asked = samples.reduce((sum, sample) => sum + sample.asked, 0);
  return asked > 0 ? samples.reduce((sum, sample) => sum + sample.found, 0) / asked : null;
}

// A line over the last samples; `largest`: the value at the top, null: that of the samples. A sample
// may be null: not known.
class Chart {
  constructor(svg, largest = null) {
    this.largest = largest;
    this.samples = [];
    this.area = document.createElementNS(SVG, 'path');
    this.line = document.createElementNS(SVG, 'path');
    this.area.setAttribute('class', 'area');
    this.line.setAttribute('class', 'line');
    svg.append(this.area, this.line);
  }

  add(sample) {
    this.samples.push(sample);
    if (this.samples.length > SAMPLES) this.samples.shift();
    this.draw();
  }

  draw() {
    const largest = this.largest ?? Math.max(1e-9, ...this.samples.map((sample) => sample ?? 0));
    const first = SAMPLES - this.samples.length;
    let line = '';
    let area = '';
    let run = [];
    const endRun = () => {
      if (run.length > 0) {
        if (run.length === 1) run.push(run[0].replace(/^[\d.]+/, (x) => (Number(x) - 2).toFixed(1)));
        line += `M${run.join('L')}`;
        const x = (point) => point.split(' ')[0];
        area += `M${x(run[0])} ${HEIGHT}L${run.join('L')}L${x(run.at(-1))} ${HEIGHT}Z`;
      }
      run = [];
    };
    this.samples.forEach((sample, index) => {
      if (sample === null) {
        endRun();
        return;
      }
      const x = (first + index) / (SAMPLES - 1) * WIDTH;
      const y = HEIGHT - 2 - Math.min(1, sample / largest) * (HEIGHT - 4);
      run.push(`${x.toFixed(1)} ${y.toFixed(1)}`);
    });
    endRun();
    this.line.setAttribute('d', line);
    this.area.setAttribute('d', area);
  }
}

export class LivePanel {
  constructor() {
    this.before = null;
    this.speed = new Chart(at('speed-chart'));
    this.reading = new Chart(at('reading-chart'));
    this.hits = new Chart(at('hits-chart'), 1);
    this.pages = [];  // {found, asked} of the last samples
  }

  // `now`: milliseconds of the page's clock.
  show(stats, now) {
    const before = this.before;
    this.before = {stats, now};
    at('running').textContent = count(stats.requests_running);
    at('waiting').textContent = count(stats.requests_waiting);
    at('slots').textContent = stats.slots > 0 ? share(stats.slots_used / stats.slots) : '–';
    // Counters of a worker that was started again are smaller.
    if (before === null || stats.uptime_seconds < before.stats.uptime_seconds || now <= before.now) return;
    const grown = (name) => Math.max(0, stats[name] - before.stats[name]);
    const elapsed = (now - before.now) / 1000;
    const written = grown('generation_tokens_total') / elapsed;
    const read = grown('prompt_tokens_total') / elapsed;
    const found = grown('page_hits_total');
    const asked = found + grown('page_misses_total') + grown('page_transients_total');
    this.speed.add(written);
    this.reading.add(read);
    this.hits.add(asked > 0 ? found / asked : null);
    at('speed').textContent = rate(written);
    at('reading').textContent = rate(read);
    this.pages.push({found, asked});
    if (this.pages.length > SAMPLES) this.pages.shift();
    const hits = shareOf(this.pages);
    at('hits').textContent = hits === null ? '–' : share(hits);
    at('live-short').textContent = `${rate(written)}${hits === null ? '' : ` · ${share(hits)} found`}`;
  }

  // Nothing is known until the server answers again.
  forget() {
    this.before = null;
    for (const id of ['speed', 'reading', 'hits', 'running', 'waiting', 'slots']) at(id).textContent = '–';
    at('live-short').textContent = '';
  }
}
