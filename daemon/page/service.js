// The way to the lane: JSON, errors, the key, and the ledger's stream.

const KEY = "ridealong-key";

/** Longer than the lane's heartbeat: a stream that is silent for so long is none any more. */
const SILENT_MS = 40_000;

/** The lane answered, and said no. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** There was no answer. */
export class Unreachable extends Error {}

export class Service {
  /** The key of this tab, or "". It is kept until the tab is closed, and sent to this lane only. */
  get key() {
    return sessionStorage.getItem(KEY) ?? "";
  }

  set key(value) {
    if (value === "") sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, value);
  }

  /** What a path answers, as JSON. Fields of the query that are empty are left out. */
  async get(path, query = {}, { key = this.key } = {}) {
    return (await this.#ask(path, { query, key })).json();
  }

  async post(path, body) {
    const init = { method: "POST" };
    if (body !== undefined) {
      init.body = JSON.stringify(body);
      init.headers = { "Content-Type": "application/json" };
    }
    return (await this.#ask(path, { init })).json();
  }

  /** Call `tell` with every row of the ledger after that seq, until the stream ends. */
  async follow({ after, agent, tell, signal }) {
    const query = { cursor: String(after), agent };
    const answer = await this.#ask("ledger/stream", { query, init: { signal, cache: "no-store" } });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let kept = "";
    try {
      for (;;) {
        const { done, value } = await withinTime(reader.read());
        if (done) return;
        const blocks = (kept + value).split("\n\n");
        kept = blocks.pop();
        for (const block of blocks) tellRow(block, tell);
      }
    } catch (error) {
      throw signal.aborted ? error : new Unreachable(String(error));
    } finally {
      reader.cancel().catch(() => {});
    }
  }

  async #ask(path, { query = {}, init = {}, key = this.key }) {
    const url = new URL(path, document.baseURI);
    url.hash = "";
    for (const [name, value] of Object.entries(query)) {
      if (value != null && value !== "") url.searchParams.set(name, value);
    }
    const headers = { ...init.headers, ...(key === "" ? {} : { Authorization: `Bearer ${key}` }) };
    let answer;
    try {
      answer = await fetch(url, { ...init, headers });
    } catch (error) {
      if (init.signal?.aborted) throw error;
      throw new Unreachable(String(error));
    }
    if (!answer.ok) throw new Refused(answer.status, await messageOf(answer));
    return answer;
  }
}

async function messageOf(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `the lane answered with status ${answer.status}`;
  }
}

function tellRow(block, tell) {
  const data = block.split("\n").filter((line) => line.startsWith("data: "));
  if (data.length > 0) tell(JSON.parse(data.map((line) => line.slice(6)).join("\n")));
}

function withinTime(reading) {
  let timer;
  const silent = new Promise((_, fail) => {
    timer = setTimeout(() => fail(new Error("the stream fell silent")), SILENT_MS);
  });
  return Promise.race([reading, silent]).finally(() => clearTimeout(timer));
}
