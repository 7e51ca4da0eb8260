// The text of a file, or why there is none. Nothing here touches the page.
import {Problem} from './problem.js';
import {count} from './text.js';

// The server takes bodies of 64 MiB, in which some characters need six bytes.
export const BYTES_MAX = 48 * 1024 * 1024;

function begins(bytes, text, at = 0) {
  return Array.from(text).every((character, index) => bytes[at + index] === character.charCodeAt(0));
}

// What may stand in front of a PDF's first bytes is 1,024 bytes long at most.
function isPdf(bytes) {
  for (let at = 0; at < Math.min(1024, bytes.length); ++at) {
    if (begins(bytes, '%PDF-', at)) return true;
  }
  return false;
}

// What to do with a file that is no text, by its first bytes.
function adviceFor(bytes) {
  if (isPdf(bytes)) return 'It is a PDF. Make a text of it first: pdftotext file.pdf file.txt';
  if (begins(bytes, 'PK\x03\x04')) {
    return 'It is an archive, as files of office programs are. Save it as plain text, or unpack it first.';
  }
  return 'Plain text in UTF-8 can be read; pictures, PDF and office files cannot.';
}

export async function readText(file) {
  if (file.size > BYTES_MAX) {
    throw new Problem(`${file.name} is too large`, `It has ${count(file.size / 1048576)} MiB; 48 MiB can be sent.`);
  }
  let bytes;
  try {
    bytes = new Uint8Array(await file.arrayBuffer());
  } catch {
    throw new Problem(`${file.name} cannot be read`, 'Is it a folder, or gone?');
  }
  // Some PDFs would pass as text.
  if (!isPdf(bytes)) {
    const isUtf16 = bytes.length >= 2 && (bytes[0] << 8 | bytes[1]) === 0xfffe;
    try {
      const text = new TextDecoder(isUtf16 ? 'utf-16le' : 'utf-8', {fatal: true}).decode(bytes);
      if (!text.includes('\0')) return text;
    } catch {
      // told below
    }
  }
  throw new Problem(`${file.name} is not a text`, adviceFor(bytes));
}
