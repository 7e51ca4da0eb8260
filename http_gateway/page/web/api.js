// The server's HTTP API, as this page needs it.
import {Problem} from './problem.js';

let apiKey = sessionStorage.getItem('retroinfer-key') ?? '';

export function hasKey() {
  return apiKey !== '';
}

export function setKey(key) {
  apiKey = key.trim();
  if (apiKey === '') {
    sessionStorage.removeItem('retroinfer-key');
  } else {
    sessionStorage.setItem('retroinfer-key', apiKey);
  }
}

export function storedKey() {
  return apiKey;
}

function seconds(count) {
  return count === 1 ? '1 second' : `${count} seconds`;
}

function sentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

// `error`: the object of that name in the answer's body, if it had one.
export function problemOf(status, error, retryAfter = null) {
  const said = sentence(typeof error?.message === 'string' ? error.message : `The server answered with status ${status}`);
  const options = {status, retryAfter};
  if (status === 401) {
    return hasKey()
      ? new Problem('The server does not accept this API key', 'Look at the key under Settings.', options)
      : new Problem('This server wants an API key', 'Enter it under Settings.', options);
  }
  if (error?.code === 'context_length_exceeded') {
    return new Problem('This is longer than the server can take', said, options);
  }
  if (status === 413) return new Problem('This is too large for the server', said, options);
  if (status === 429) {
    const when = retryAfter === null ? 'Try again soon.' : `Try again in ${seconds(retryAfter)}.`;
    return new Problem('The server has no place free', `${when} ${said}`, options);
  }
  if (error?.code === 'out_of_memory') {
    return new Problem('There is no room for this context now', said, options);
  }
  if (status === 503) return new Problem('The model does not answer now', said, options);
  if (status === 502) return new Problem('The server is not set up rightly', said, options);
  if (status === 504 || status === 408) return new Problem('This took too long', said, options);
  if (status >= 500) return new Problem('Something went wrong in the server', said, options);
  return new Problem('The server refused this', said, options);
}

function unreachable() {
  return new Problem('The server cannot be reached', 'It may be stopped, or the connection is gone.');
}

// An answer with a status of success. Throws a Problem, or an AbortError.
async function ask(method, path, body, signal) {
  const headers = {};
  if (hasKey()) headers.Authorization = `Bearer ${apiKey}`;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  let answer;
  try {
    answer = await fetch(path, {
      method, headers, signal, cache: 'no-store', body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    throw error.name === 'AbortError' ? error : unreachable();
  }
  if (answer.ok) return answer;
  let error;
  try {
    error = (await answer.json()).error;
  } catch {
    error = undefined;  // a proxy's own page, perhaps
  }
  const wait = Number.parseInt(answer.headers.get('Retry-After') ?? '', 10);
  throw problemOf(answer.status, error, Number.isNaN(wait) ? null : wait);
}

export async function stats(signal) {
  return (await ask('GET', '/stats', undefined, signal)).json();
}

export async function countTokens(text, signal) {
  const answer = await ask('POST', '/tokenize',
    {prompt: text, add_special_tokens: false, return_tokens: false}, signal);
  return answer.json();
}

// The "data" of server-sent events, from the bytes of a stream.
export async function* eventsOf(stream) {
  const decoder = new TextDecoder();
  const reader = stream.getReader();
  let text = '';
  try {
    while (true) {
      const {done, value} = await reader.read();
      text += done ? decoder.decode() : decoder.decode(value, {stream: true});
      let begin = 0;
      for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n', begin)) {
        const lines = text.slice(begin, end).split('\n').filter((line) => line.startsWith('data:'));
        if (lines.length > 0) yield lines.map((line) => line.slice(5).trimStart()).join('\n');
        begin = end + 2;
      }
      text = text.slice(begin);
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// Yields the chunks of a streamed chat. Throws a Problem, also where the stream ends too early, or an
// AbortError.
export async function* chat(request, signal) {
  const answer = await ask('POST', '/v1/chat/completions', {
    ...request, stream: true, stream_options: {include_usage: true}, return_progress: true,
  }, signal);
  try {
    for await (const data of eventsOf(answer.body)) {
      if (data === '[DONE]') return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw problemOf(503, chunk.error);
      yield chunk;
    }
  } catch (error) {
    if (error instanceof Problem || error.name === 'AbortError') throw error;
    throw unreachable();
  }
  throw new Problem('The answer broke off', 'The connection ended before the answer did.');
}
