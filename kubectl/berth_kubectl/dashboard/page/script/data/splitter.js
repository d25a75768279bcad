// Cuts streams of JSON into single objects before they are parsed: a list of a large fleet has 50 MB, which parsed
// in one piece would block the page for a second.

const QUOTE = 34;
const BACKSLASH = 92;
const OPEN = 123; // {
const CLOSE = 125; // }
const OPEN_LIST = 91; // [
const CLOSE_LIST = 93; // ]
const NEWLINE = 10;
/** Depth between two items. */
const IN_ITEMS = 2;

const MAX_OBJECT = 64 * 2 ** 20;
/** Bytes of the text around the items. */
const MAX_HEAD = 2 ** 20;

/** Bytes of one object that may arrive in several pieces. */
class Pieces {
  #pieces = [];
  #bytes = 0;
  #decoder = new TextDecoder();

  add(bytes) {
    this.#bytes += bytes.length;
    if (this.#bytes > MAX_OBJECT) throw new Error("an object in the answer is larger than 64 MiB");
    if (bytes.length) this.#pieces.push(bytes);
  }

  get isEmpty() {
    return this.#bytes === 0;
  }

  /** Return the text, and begin the next one. */
  take() {
    const last = this.#pieces.length - 1;
    const text = this.#pieces.map((piece, index) => this.#decoder.decode(piece, { stream: index < last })).join("");
    this.#pieces = [];
    this.#bytes = 0;
    return text;
  }
}

/** Splits the body of a Kubernetes list into the texts of its items; what is around them is kept for `end`. */
export class ListSplitter {
  #depth = 0;
  #inString = false;
  #isEscaped = false;
  #inItems = false;
  #item = new Pieces();
  #outside = new Pieces();
  #headBytes = 0;
  #recent = "";

  /** Return the texts of the items that end in these bytes. */
  push(bytes) {
    const texts = [];
    let start = 0; // of what has not been added to item or head
    // Locals: private fields would be read once for each byte.
    let depth = this.#depth;
    let inString = this.#inString;
    let isEscaped = this.#isEscaped;
    for (let at = 0; at < bytes.length; at += 1) {
      const byte = bytes[at];
      if (inString) {
        if (isEscaped) isEscaped = false;
        else if (byte === BACKSLASH) isEscaped = true;
        else if (byte === QUOTE) inString = false;
      } else if (byte === QUOTE) {
        inString = true;
      } else if (byte === OPEN || byte === OPEN_LIST) {
        if (this.#inItems && depth === IN_ITEMS) start = at; // the comma before it belongs to nothing
        else if (byte === OPEN_LIST && depth === 1 && this.#endsWithItems(bytes, at)) start = this.#enter(bytes, start, at);
        depth += 1;
      } else if (byte === CLOSE || byte === CLOSE_LIST) {
        depth -= 1;
        if (this.#inItems && depth === IN_ITEMS) {
          this.#item.add(bytes.subarray(start, at + 1));
          texts.push(this.#item.take());
          start = at + 1;
        } else if (this.#inItems && depth < IN_ITEMS) {
          this.#inItems = false;
          start = at;
        }
      }
    }
    this.#depth = depth;
    this.#inString = inString;
    this.#isEscaped = isEscaped;
    this.#keepRest(bytes.subarray(start));
    return texts;
  }

  /** Return the list without its items; throws if the body was cut off. */
  end() {
    if (this.#depth !== 0 || this.#outside.isEmpty) throw new Error("the answer ended early");
    return JSON.parse(this.#outside.take());
  }

  #enter(bytes, start, at) {
    this.#keepOutside(bytes.subarray(start, at + 1));
    this.#inItems = true;
    return at + 1;
  }

  #keepRest(bytes) {
    if (!this.#inItems) this.#keepOutside(bytes);
    else if (this.#depth > IN_ITEMS) this.#item.add(bytes);
  }

  #keepOutside(bytes) {
    this.#headBytes += bytes.length;
    if (this.#headBytes > MAX_HEAD) throw new Error("the answer is not a list");
    this.#outside.add(bytes);
    this.#recent = (this.#recent + new TextDecoder().decode(bytes)).slice(-16);
  }

  /** Return whether the text before an opening bracket is the key `items`. */
  #endsWithItems(bytes, at) {
    const before = this.#recent + new TextDecoder().decode(bytes.subarray(Math.max(0, at - 16), at));
    return /"items"\s*:\s*$/.test(before);
  }
}

/** Splits a stream into its lines. */
export class LineSplitter {
  #rest = new Pieces();

  /** Yield the lines that end in these bytes. */
  *push(bytes) {
    let start = 0;
    for (let end = bytes.indexOf(NEWLINE); end >= 0; end = bytes.indexOf(NEWLINE, start)) {
      this.#rest.add(bytes.subarray(start, end));
      start = end + 1;
      if (!this.#rest.isEmpty) yield this.#rest.take();
    }
    this.#rest.add(bytes.subarray(start));
  }
}
