import {readText} from '../page/document_text.js';
import {equal, isTrue, test} from './cases.js';

function file(name, ...parts) {
  const blob = new Blob(parts);
  return {name, size: blob.size, arrayBuffer: () => blob.arrayBuffer()};
}

async function refused(given) {
  try {
    await readText(given);
  } catch (problem) {
    return `${problem.message}. ${problem.detail}`;
  }
  throw new Error(`${given.name} was taken`);
}

test('text in UTF-8 and UTF-16 is read', async () => {
  equal(await readText(file('a', 'é😀\n')), 'é😀\n');
  equal(await readText(file('a', Uint8Array.of(0xff, 0xfe, 0x61, 0, 0xe9, 0))), 'aé');
  equal(await readText(file('a', 'A text about %PDF, and PK.')), 'A text about %PDF, and PK.');
  equal(await readText(file('a')), '');
});

test('other files are refused with what to do', async () => {
  isTrue((await refused(file('a.pdf', '%PDF-1.7\nall of it is ASCII'))).includes('pdftotext file.pdf file.txt'), 'PDF');
  isTrue((await refused(file('a.txt', '\n\n\uFEFF%PDF-1.4'))).includes('pdftotext'), 'PDF behind other bytes');
  isTrue((await refused(file('a.docx', Uint8Array.of(0x50, 0x4b, 3, 4, 0xff, 0)))).includes('plain text'), 'archive');
  isTrue((await refused(file('a.png', Uint8Array.of(0x89, 0x50, 0x4e, 0x47)))).includes('is not a text'), 'picture');
  isTrue((await refused(file('a', 'a\0b'))).includes('is not a text'), 'zero');
  isTrue((await refused({name: 'a', size: 48 * 1024 * 1024 + 1})).includes('48 MiB can be sent'), 'large');
  const gone = {name: 'a', size: 1, arrayBuffer: () => Promise.reject(new Error())};
  isTrue((await refused(gone)).includes('cannot be read'), 'gone');
});
