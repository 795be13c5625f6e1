// Each agent's adapters: what is served, how far the shadow has gone; promoting, rolling back, forgetting.

import { announce, confirmed } from "./dialogs.js";
import { byId, el, fact, nothing, renew, row, table } from "./dom.js";
import { forgetButton } from "./forget.js";
import { count, many, moment } from "./words.js";

const COLUMNS = [["Version"], ["Steps", "number"], ["Made"], ["State"], ["Action", "action"]];

/** Versions shown at once; the others are a click away. */
const NEWEST = 6;

export class AdaptersPart {
  constructor(service) {
    this.service = service;
    this.agent = "";
  }

  async refresh() {
    const all = await this.service.get("adapters");
    const shown = all.filter(({ agent }) => this.agent === "" || agent === this.agent);
    renew(byId("adapter-list"), shown, () => (shown.length === 0
      ? nothing("No agent has adapters yet: her first lesson makes a shadow, which is served once it is promoted.")
      : shown.map((own) => this.#card(own))));
  }

  #card(own) {
    const { agent, shadow, stable } = own;
    const ahead = shadow.sha !== stable.sha;
    const promote = el("button", { type: "button", class: "main", "data-focus": `promote-${agent}`, disabled: !ahead,
      "aria-label": `Promote ${agent}'s shadow`, on: { click: () => this.#promote(own) } }, "Promote");
    return el("article", { class: "adapter", "aria-label": `${agent}'s adapters` },
      el("header", {}, el("h3", {}, agent), promote),
      el("dl", { class: "facts" },
        fact("Served", stable.version === 0 ? "the base, version 0" : `version ${stable.version}`, `, ${many(stable.steps, "step")}`),
        fact("Shadow", many(shadow.steps, "step"), ahead ? `, ${aheadOf(shadow, stable)}` : ", all of it served")),
      this.#versions(own),
      el("p", { class: "more" }, forgetButton(this.service, { agent }, `Forget all of ${agent}…`, () => this.refresh())));
  }

  #versions({ agent, versions }) {
    const newest = [...versions].reverse();
    const rowOf = (version) => row(COLUMNS, [`version ${version.version}`, count(version.steps),
      el("time", { datetime: version.created_at }, moment(version.created_at)),
      version.state === "stable" ? "● served" : "kept", this.#back(agent, version)]);
    const of = (some, caption) => {
      const made = table(caption, COLUMNS, [], { hidden: true });
      made.tBodies[0].append(...some.map(rowOf));
      return el("div", { class: "scroll" }, made);
    };
    const older = newest.slice(NEWEST);
    return el("details", { "data-focus": `versions-${agent}`, open: versions.length > 1 && versions.length <= NEWEST },
      el("summary", {}, many(versions.length, "version")),
      of(newest.slice(0, NEWEST), `Versions of ${agent}'s adapter`),
      older.length === 0 ? null : el("details", {}, el("summary", {}, `${count(older.length)} older`), of(older, `Older versions of ${agent}'s adapter`)));
  }

  #back(agent, { version, state }) {
    if (state === "stable") return "";
    return el("button", { type: "button", "data-focus": `rollback-${agent}-${version}`, "aria-label": `Roll ${agent} back to version ${version}`,
      on: { click: () => this.#rollback(agent, version) } }, "Roll back");
  }

  async #promote({ agent, shadow, stable }) {
    let made;
    const done = await confirmed({
      title: `Promote ${agent}'s shadow?`,
      says: [`From her next turn on ${agent} is served with the shadow of ${many(shadow.steps, "step")}, in place of version ${stable.version} of ${many(stable.steps, "step")}.`,
        "Other agents notice nothing. It can be rolled back."],
      action: "Promote",
      change: async () => { made = await this.service.post(`adapters/${encodeURIComponent(agent)}/promote`); },
    });
    if (done) await this.#told(`${agent} is served with version ${made.version} now.`);
  }

  async #rollback(agent, version) {
    const done = await confirmed({
      title: `Roll ${agent} back to version ${version}?`,
      says: [`From her next turn on ${agent} is served with ${version === 0 ? "version 0, the base" : `version ${version}`}, and learns on from there.`,
        "Lessons that are walking end, and what the shadow learned since that version is left behind; the ledger keeps its record."],
      action: "Roll back",
      change: () => this.service.post(`adapters/${encodeURIComponent(agent)}/rollback`, { version }),
    });
    if (done) await this.#told(`${agent} is served with version ${version} again.`);
  }

  async #told(said) {
    await this.refresh().catch(() => {});
    announce(said);
  }
}

function aheadOf(shadow, stable) {
  const steps = shadow.steps - stable.steps;
  return steps > 0 ? `${count(steps)} more than what is served` : "not what is served";
}
