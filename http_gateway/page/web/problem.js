// What went wrong, for people: `message` in a few words, `detail` what to do or what the server said.
export class Problem extends Error {
  constructor(message, detail, {status = 0, retryAfter = null} = {}) {
    super(message);
    this.detail = detail;
    this.status = status;
    this.retryAfter = retryAfter;
  }
}
