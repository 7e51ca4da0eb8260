import {eventsOf, problemOf} from '../page/api.js';
import {equal, isTrue, test} from './cases.js';

async function events(...pieces) {
  const encoder = new TextEncoder();
  const stream = new ReadableStream({
    start(controller) {
      for (const piece of pieces) controller.enqueue(typeof piece === 'string' ? encoder.encode(piece) : piece);
      controller.close();
    },
  });
  const found = [];
  for await (const data of eventsOf(stream)) found.push(data);
  return found;
}

test('events come whole, however the bytes are cut', async () => {
  const text = 'data: {"a": "é😀"}\n\n: a comment\n\ndata: one\ndata: two\n\nevent: x\ndata:[DONE]\n\ndata: cut';
  const wanted = ['{"a": "é😀"}', 'one\ntwo', '[DONE]'];
  equal(await events(text), wanted);
  equal(await events(...Array.from(new TextEncoder().encode(text), (byte) => Uint8Array.of(byte))), wanted);
});

test('problems say what can be done', () => {
  const said = (...of) => {
    const {message, detail} = problemOf(...of);
    return `${message}. ${detail}`;
  };
  isTrue(said(429, {message: 'full'}, 1).includes('Try again in 1 second. Full.'), '429');
  isTrue(said(400, {code: 'context_length_exceeded', message: 'x'}).includes('longer than the server can take'), 'length');
  isTrue(said(401, {}).includes('wants an API key'), '401');
  isTrue(said(500, undefined).includes('status 500'), 'a page of a proxy');
});
