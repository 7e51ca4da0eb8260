// Colours for code: comments, strings, numbers and words of a language. Nothing here touches the
// page. No language is parsed: a line at a time, with what a line leaves open (a long comment or
// string), so that code which is being written is read once.

const LINE_MAX = 5000;  // characters: a longer line is data, not code

const words = (text) => new Set(text.split(' '));

const C_WORDS =
  'auto bool break case char const continue default do double else enum extern false float for ' +
  'goto if inline int long nullptr NULL register restrict return short signed sizeof static ' +
  'struct switch true typedef union unsigned void volatile while';
const CPP_WORDS =
  `${C_WORDS} alignas alignof catch class concept consteval constexpr constinit co_await ` +
  'co_return co_yield decltype delete dynamic_cast explicit export final friend mutable ' +
  'namespace new noexcept operator override private protected public reinterpret_cast requires ' +
  'static_assert static_cast template this thread_local throw try typeid typename using virtual ' +
  'wchar_t __global__ __device__ __host__ __shared__ __constant__';
const JAVA_WORDS =
  'abstract assert boolean break byte case catch char class const continue default do double ' +
  'else enum extends false final finally float for if implements import instanceof int interface ' +
  'long native new null package private protected public record return sealed short static super ' +
  'switch synchronized this throw throws true try var void volatile while yield fun val when ' +
  'object data override suspend is in namespace using string decimal foreach async await ' +
  'readonly get set internal virtual base';
const SCRIPT_WORDS =
  'abstract any as async await boolean break case catch class const continue debugger declare ' +
  'default delete do else enum export extends false finally for from function get if implements ' +
  'import in instanceof interface let namespace never new null number of private protected ' +
  'public readonly return satisfies set static string super switch this throw true try type ' +
  'typeof undefined unknown var void while yield';
const GO_WORDS =
  'any bool break byte case chan const continue default defer else error fallthrough false ' +
  'float32 float64 for func go goto if import int int32 int64 interface iota map nil package ' +
  'range return rune select string struct switch true type uint uint32 uint64 var';
const RUST_WORDS =
  'as async await bool box break char const continue crate dyn else enum extern f32 f64 false fn ' +
  'for i32 i64 if impl in isize let loop match mod move mut pub ref return self Self static str ' +
  'String struct super trait true type u32 u64 u8 unsafe use usize where while None Some Ok Err ' +
  'Option Result Vec';
const PYTHON_WORDS =
  'and as assert async await break case class continue def del elif else except False ' +
  'from finally for global if import in is lambda match None nonlocal not or pass raise return self ' +
  'True try while with yield';
const SHELL_WORDS =
  'alias break case cd continue declare do done echo elif else esac eval exec exit export fi for ' +
  'function if in local readonly return select set shift source then trap unset until while';
const SQL_WORDS =
  'add all alter and as asc avg begin between by case cast check column commit constraint count ' +
  'create cross date default delete desc distinct drop else end exists false foreign from full ' +
  'group having if in index inner insert int integer into is join key left like limit max min ' +
  'not null numeric offset on or order outer over partition primary references returning right ' +
  'rollback select set sum table text then transaction true union unique update using values ' +
  'varchar view when where with';

const SLASHES = {line: ['//'], block: [['/*', '*/']]};
const HASH = {line: ['#'], block: []};

function language(keywords, comments, strings, options = {}) {
  return {words: words(keywords), ...comments, strings, long: [], anyCase: false, ...options};
}

const PLAIN_STRINGS = ['"', "'"];
const LANGUAGES = {
  c: language(C_WORDS, SLASHES, PLAIN_STRINGS),
  cpp: language(CPP_WORDS, SLASHES, PLAIN_STRINGS),
  java: language(JAVA_WORDS, SLASHES, PLAIN_STRINGS),
  javascript: language(SCRIPT_WORDS, SLASHES, PLAIN_STRINGS, {long: ['`']}),
  go: language(GO_WORDS, SLASHES, PLAIN_STRINGS, {long: ['`']}),
  rust: language(RUST_WORDS, SLASHES, ['"']),
  python: language(PYTHON_WORDS, HASH, PLAIN_STRINGS, {long: ['"""', "'''"]}),
  shell: language(SHELL_WORDS, HASH, [], {long: PLAIN_STRINGS}),
  sql: language(SQL_WORDS, {line: ['--'], block: [['/*', '*/']]}, PLAIN_STRINGS, {anyCase: true}),
  data: language('true false null yes no on off', HASH, PLAIN_STRINGS),
  json: language('true false null', SLASHES, ['"']),
  markup: language('', {line: [], block: [['<!--', '-->']]}, PLAIN_STRINGS),
  css: language('', {line: [], block: [['/*', '*/']]}, PLAIN_STRINGS),
};

const NAMES = new Map(Object.entries({
  c: 'c h', cpp: 'cpp c++ cc cxx hpp cu cuda cuh', java: 'java kotlin kt cs csharp c# swift scala dart php groovy',
  javascript: 'javascript js mjs jsx typescript ts tsx node', go: 'go golang', rust: 'rust rs',
  python: 'python py python3 ipython', shell: 'sh bash shell zsh console dockerfile makefile make cmake ruby rb perl r',
  sql: 'sql mysql postgresql postgres sqlite', data: 'yaml yml toml ini conf properties env', json: 'json jsonc json5',
  markup: 'html xml svg xhtml', css: 'css scss less',
}).flatMap(([kind, names]) => names.split(' ').map((name) => [name, LANGUAGES[kind]])));

// Reads the lines of a piece of code in their order.
export class Highlighter {
  // `name`: of the language, as it stands behind a fence; of an unknown one all is plain.
  constructor(name) {
    this.isDiff = /^(diff|patch)$/i.test(name);
    this.language = NAMES.get(name.toLowerCase()) ?? null;
    this.open = null;  // {kind, end}: what the line before has left open
  }

  // Returns: [{kind, text}] that together are `line`; kinds: '' 'comment' 'string' 'number' 'word'
  //          'added' 'removed'.
  // Cost:    linear in the line.
  line(line) {
    if (this.isDiff) return [{kind: {'+': 'added', '-': 'removed', '@': 'comment'}[line.charAt(0)] ?? '', text: line}];
    if (line === '') return [];
    if (this.language === null || line.length > LINE_MAX) return [{kind: this.open?.kind ?? '', text: line}];
    const parts = [];
    for (let at = 0; at < line.length;) {
      const {kind, end} = this.open !== null ? this.closeAt(line, at) : this.partAt(line, at);
      const last = parts.at(-1);
      if (last && last.kind === kind) last.text += line.slice(at, end);
      else parts.push({kind, text: line.slice(at, end)});
      at = end;
    }
    return parts;
  }

  closeAt(line, at) {
    const {kind, end} = this.open;
    const found = this.findEnd(line, at, end);
    if (found >= 0) this.open = null;
    return {kind, end: found < 0 ? line.length : found};
  }

  // The place behind `mark`; a mark behind a backslash is none. -1: there is none.
  findEnd(line, from, mark) {
    for (let at = from; at < line.length; ++at) {
      if (line.charAt(at) === '\\' && this.open?.kind !== 'comment') ++at;
      else if (line.startsWith(mark, at)) return at + mark.length;
    }
    return -1;
  }

  partAt(line, at) {
    const begins = (mark) => line.startsWith(mark, at);
    const {block, line: lineComments, long, strings} = this.language;
    const opened = block.find(([begin]) => begins(begin));
    if (opened) return this.leaveOpen('comment', line, at + opened[0].length, opened[1]);
    // In an address, as in $# of a shell, these are no comments.
    if (lineComments.some(begins) && (at === 0 || /[\s;,(){}]/.test(line.charAt(at - 1)))) {
      return {kind: 'comment', end: line.length};
    }
    const longMark = long.find(begins);
    if (longMark) return this.leaveOpen('string', line, at + longMark.length, longMark);
    const mark = strings.find(begins);
    if (mark) {
      const end = this.findEnd(line, at + 1, mark);
      return end < 0 ? {kind: '', end: at + 1} : {kind: 'string', end};
    }
    return this.wordAt(line, at);
  }

  leaveOpen(kind, line, inside, end) {
    this.open = {kind, end};
    return this.closeAt(line, inside);
  }

  wordAt(line, at) {
    const pattern = /(\d[\w.]*)|([A-Za-z_$][\w$]*)|[^\w$]/y;
    pattern.lastIndex = at;
    const found = pattern.exec(line);
    if (!found) return {kind: '', end: at + 1};
    const end = at + found[0].length;
    if (found[1]) return {kind: 'number', end};
    if (!found[2]) return {kind: '', end};
    const word = this.language.anyCase ? found[2].toLowerCase() : found[2];
    return {kind: this.language.words.has(word) ? 'word' : '', end};
  }
}
