// The page: what is asked for when, and which part gets it.

import { AdaptersPart } from "./adapters.js";
import { askedForKey, isAsking, mention } from "./dialogs.js";
import { byId, el } from "./dom.js";
import { LanePart } from "./lane.js";
import { LearningPart, RefusalsPart } from "./learning.js";
import { LedgerPart } from "./ledger.js";
import { LessonPart } from "./lesson.js";
import { LessonsPart } from "./lessons.js";
import { Refused, Service } from "./service.js";
import { many, moment } from "./words.js";

/** How long to wait before the lane is asked again: after an end, and for what changes without a row. */
const AGAIN_MS = 2000;

/** How many times as long as the last answer took the lane is left alone: a large ledger is asked less often. */
const REST = 10;

/** Rows are shown together that come within so long of each other. */
const TOGETHER_MS = 250;

/** How often at most it is said aloud how many rows came. */
const SAID_MS = 30_000;

const ROWS_OF_TURNS = "200", ROWS_OF_LESSONS = "600";

/** What is asked for again after a row of a kind. */
const OF_LESSONS = new Set(["lesson", "step", "refusal", "forgot"]);
const OF_ADAPTERS = new Set(["step", "promotion", "rollback", "forgot"]);

class Page {
  #agent = "";
  #arrived = [];
  #agents = "";
  #begun = false;
  #restUntil = 0;
  #following = new AbortController();
  #saidAt = 0;
  #unsaid = 0;

  constructor(service, sentences) {
    this.service = service;
    this.lane = new LanePart();
    this.learning = new LearningPart();
    this.refusals = new RefusalsPart(sentences, (code) => this.ledger.only(code));
    this.lessons = new LessonsPart(service, sentences);
    this.lesson = new LessonPart(service, sentences);
    this.adapters = new AdaptersPart(service);
    this.ledger = new LedgerPart(service, sentences);
    byId("agent").addEventListener("change", () => this.#choose(byId("agent").value));
    byId("key").addEventListener("click", () => this.#askForKey());
    addEventListener("hashchange", () => this.#openNamed());
  }

  /** Follow the lane for as long as the page is open. */
  async run() {
    setInterval(() => this.#poll(), AGAIN_MS);
    for (;;) {
      this.#following = new AbortController();
      const { signal } = this.#following;
      try {
        await this.#follow(signal);
      } catch (error) {
        if (!signal.aborted) this.#failed(error);
        if (error instanceof Refused && error.status === 401) await aborted(signal);
      }
      if (!signal.aborted) await sleep(AGAIN_MS);
    }
  }

  async #follow(signal) {
    const last = await this.#refresh();
    this.#connected();
    await this.service.follow({ after: last, agent: this.#agent, signal, tell: (row) => this.#arrive(row) });
    this.#disconnected();
  }

  /** Ask for everything; gives the seq after which rows are yet to come. */
  async #refresh() {
    const summary = await this.#summarise();
    this.lane.clear();
    const of = (kind, limit) => this.service.get("ledger", { agent: this.#agent, kind, newest: "true", limit });
    const [turns, lessons, props] = await Promise.all([of("turn", ROWS_OF_TURNS), of("lesson", ROWS_OF_LESSONS), this.service.get("props"),
      this.#askSlots(), this.adapters.refresh(), this.lessons.refresh(), this.ledger.refresh()]);
    this.lane.add([...lessons.rows, ...turns.rows]);
    byId("model").textContent = props.model_alias;
    byId("build").textContent = props.build_info;
    document.title = `${props.model_alias} · ridealong`;
    await (this.#begun ? this.lesson.refresh() : this.#openNamed());
    this.#begun = true;
    return summary.ledger.last_seq ?? 0;
  }

  async #summarise() {
    const summary = await this.service.get("ledger/summary", { agent: this.#agent });
    this.lane.show(summary.lane);
    this.learning.show(summary);
    this.refusals.show(summary.totals);
    if (this.#agent === "") this.#nameAgents(summary.agents.map(({ agent }) => agent));
    return summary;
  }

  async #askSlots() {
    this.lane.showSlots(await this.service.get("slots"));
  }

  /** What changes without a row, while somebody looks. */
  async #poll() {
    const asked = performance.now();
    if (document.hidden || byId("connection").dataset.state !== "connected" || asked < this.#restUntil) return;
    this.#restUntil = Infinity;
    try {
      await Promise.all([this.#askSlots(), this.#summarise()]);
    } catch {
      // The stream finds out too, and says so.
    }
    const now = performance.now();
    this.#restUntil = now + REST * (now - asked);
  }

  #arrive(row) {
    if (this.#arrived.length === 0) setTimeout(() => this.#show(this.#arrived.splice(0)), TOGETHER_MS);
    this.#arrived.push(row);
  }

  async #show(rows) {
    this.ledger.add(rows);
    this.lane.add(rows);
    this.#say(rows.length);
    const told = (kinds) => rows.some(({ kind }) => kinds.has(kind));
    try {
      if (told(OF_LESSONS)) await Promise.all([this.lessons.refresh(), this.lesson.refresh()]);
      if (told(OF_ADAPTERS)) await this.adapters.refresh();
    } catch {
      // Asked for again with the next row, or once the lane is back.
    }
  }

  #say(rows) {
    this.#unsaid += rows;
    if (Date.now() - this.#saidAt < SAID_MS) return;
    this.#saidAt = Date.now();
    mention(`${many(this.#unsaid, "new row")} in the ledger`);
    this.#unsaid = 0;
  }

  #choose(agent) {
    this.#agent = this.adapters.agent = this.ledger.agent = agent;
    this.lessons.of(agent);
    this.#following.abort();
  }

  #nameAgents(names) {
    const signature = names.join("\n");
    if (signature === this.#agents) return;
    this.#agents = signature;
    byId("agent").replaceChildren(el("option", { value: "" }, "all"), ...names.map((name) => el("option", { value: name }, name)));
  }

  /** Open the lesson that the address names, if it names one. */
  async #openNamed() {
    const named = /^#lesson=(.+)$/.exec(location.hash);
    if (named === null) return;
    try {
      await this.lesson.open(decodeURIComponent(named[1]));
    } catch {
      this.lesson.clear();
    }
  }

  #connected() {
    byId("key").hidden = this.service.key === "";
    state("connected", "Connected");
    byId("banner").hidden = true;
    mention("Connected");
  }

  #disconnected() {
    const at = moment(new Date().toISOString());
    if (byId("connection").dataset.state === "connected") this.#since = at;
    state("disconnected", "Disconnected");
    banner(`Disconnected: the lane does not answer. What is shown is as it was at ${this.#since ?? at}; the page tries again every ${AGAIN_MS / 1000} seconds.`);
  }

  #since;

  #failed(error) {
    if (!(error instanceof Refused)) {
      this.#disconnected();
      return;
    }
    state("refused", error.status === 401 ? "Key needed" : "Refused");
    banner(`${error.status === 401 ? "A key is needed" : "The lane refuses"}: ${error.message}.`);
    byId("key").hidden = false;
    if (error.status === 401) this.#askForKey();
  }

  async #askForKey() {
    if (isAsking()) return;
    const used = await askedForKey(this.service, (key) => this.service.get("ledger/summary", {}, { key }));
    if (used) {
      this.#agents = "";
      byId("agent").value = "";
      this.#choose("");
    }
  }
}

function state(name, said) {
  const node = byId("connection");
  node.dataset.state = name;
  node.textContent = said;
}

function banner(said) {
  const node = byId("banner");
  if (!node.hidden && node.textContent === said) return;
  node.hidden = false;
  node.textContent = said;
}

const aborted = (signal) => new Promise((done) => signal.addEventListener("abort", done, { once: true }));

const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

const service = new Service();
new Page(service, await service.get("page/refusals.json")).run();
