// Numbers and small parts of the page.

const whole = new Intl.NumberFormat('en', {maximumFractionDigits: 0});

export function count(number) {
  return whole.format(number);
}

export function tokens(number) {
  return `${count(number)} ${number === 1 ? 'token' : 'tokens'}`;
}

// Three digits are enough to compare, and do not jump.
export function rate(perSecond) {
  if (perSecond >= 100 || perSecond === 0) return `${count(perSecond)}/s`;
  return `${perSecond.toFixed(perSecond >= 10 ? 1 : 2)}/s`;
}

export function share(part) {
  const percent = part * 100;
  if (percent > 0 && percent < 10) return `${percent.toFixed(1)} %`;
  return `${percent.toFixed(0)} %`;
}

export function duration(milliseconds) {
  if (milliseconds < 1000) return `${milliseconds.toFixed(0)} ms`;
  return `${(milliseconds / 1000).toFixed(milliseconds < 10000 ? 2 : 1)} s`;
}

// An element with a class and what is in it: text, or other elements.
export function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}
