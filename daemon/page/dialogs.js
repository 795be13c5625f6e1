// Two questions: which key, and whether something is really meant.

import { byId, el } from "./dom.js";
import { Refused } from "./service.js";

/**
 * Ask before something is changed, then change it. What the lane refuses is told in the dialog, which stays.
 * `says` are texts and paragraphs; `change` does it. True if it was done.
 */
export function confirmed({ title, says, action, change, danger = false }) {
  const wrong = el("p", { role: "alert", class: "wrong", hidden: true });
  const yes = el("button", { type: "submit", class: danger ? "main danger" : "main" }, action);
  return new Promise((resolve) => {
    const dialog = opened(title, [...says.map((said) => (typeof said === "string" ? el("p", {}, said) : said)), wrong], [yes], async (close) => {
      yes.disabled = true;
      yes.textContent = "Working…";
      try {
        await change();
        close(true);
      } catch (error) {
        tell(wrong, reasonOf(error));
      } finally {
        yes.disabled = false;
        yes.textContent = action;
      }
    }, resolve);
    dialog.querySelector("button[value=cancel]").focus();
  });
}

/** Ask for a key; `check` says whether the lane knows it. True if another is used now. */
export function askedForKey(service, check) {
  const input = el("input", { type: "password", id: "key-input", autocomplete: "off", required: true, spellcheck: "false" });
  const wrong = el("p", { role: "alert", class: "wrong", hidden: true });
  const says = el("p", {}, "A lane that has keys shows an agent's key what is hers, and an operator's everything. ",
    "The key is kept in this tab until it is closed, and sent to this lane only.");
  const use = el("button", { type: "submit", class: "main" }, "Use this key");
  const buttons = [use];
  return new Promise((resolve) => {
    const content = [says, el("label", { for: "key-input" }, "Key"), input, wrong];
    const dialog = opened("Key", content, buttons, async (close) => {
      try {
        await check(input.value.trim());
        service.key = input.value.trim();
        close(true);
      } catch (error) {
        tell(wrong, reasonOf(error));
        input.focus();
      }
    }, resolve);
    if (service.key !== "") {
      use.after(el("button", { type: "button", on: { click: () => { service.key = ""; dialog.done(true); } } },
        "Forget the key"));
    }
    input.focus();
  });
}

/** Is that dialog, or another, open? */
export const isAsking = () => document.querySelector("dialog[open]") !== null;

function opened(title, content, buttons, submitted, resolve) {
  const heading = el("h2", { id: "dialog-title" }, title);
  const cancel = el("button", { type: "button", value: "cancel", on: { click: () => dialog.done(false) } }, "Cancel");
  const form = el("form", {}, heading, ...content, el("div", { class: "buttons" }, cancel, ...buttons));
  const dialog = el("dialog", { "aria-labelledby": "dialog-title" }, form);
  const before = document.activeElement;
  dialog.done = (result) => {
    dialog.close();
    dialog.remove();
    if (before?.isConnected) before.focus();
    resolve(result);
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submitted(dialog.done);
  });
  dialog.addEventListener("cancel", (event) => {
    event.preventDefault();
    dialog.done(false);
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

function tell(node, said) {
  node.hidden = false;
  node.textContent = said;
}

function reasonOf(error) {
  if (!(error instanceof Refused)) return "The lane cannot be reached now; nothing was changed. Try again when it is back.";
  if (error.status === 401) return `The lane does not know this key: ${error.message}.`;
  if (error.status === 403) return `Not with this key: ${error.message}.`;
  return `Refused: ${error.message}`;
}

/** Say how what was asked for ended, to whoever cannot see the page change. */
export function announce(said) {
  byId("announcer").textContent = said;
}

/** Say what came by itself; it has a place of its own, so that it never takes the place of an answer not yet read out. */
export function mention(said) {
  byId("news").textContent = said;
}
