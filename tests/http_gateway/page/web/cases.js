// What the tests of the page's modules are written with; runs in a browser and in Node.js.

const cases = [];

export function test(name, body) {
  cases.push({name, body});
}

export function equal(got, wanted, what = '') {
  const [a, b] = [JSON.stringify(got), JSON.stringify(wanted)];
  if (a !== b) throw new Error(`${what}\n  got    ${a}\n  wanted ${b}`);
}

export function isTrue(condition, what) {
  if (!condition) throw new Error(what);
}

// Returns what `body` throws.
export function thrown(body) {
  try {
    body();
  } catch (error) {
    return error;
  }
  throw new Error('nothing was thrown');
}

// Returns: names of the cases that ran, and what failed.
export async function runAll() {
  const failures = [];
  for (const {name, body} of cases) {
    try {
      await body();
    } catch (error) {
      failures.push(`${name}: ${error.message}\n${error.stack}`);
    }
  }
  return {names: cases.map(({name}) => name), failures};
}
