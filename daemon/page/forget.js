// Forgetting a signal, a context or an agent: first what there is of it, then the question, then the deed.

import { announce, confirmed } from "./dialogs.js";
import { el } from "./dom.js";
import { many } from "./words.js";

/** A button that has the lane forget what a scope names: `{ signal }`, or `{ agent }` with or without `{ context }`. */
export function forgetButton(service, scope, text, done) {
  const button = el("button", { type: "button", class: "danger", "data-focus": `forget-${JSON.stringify(scope)}` }, text);
  button.addEventListener("click", () => forget(service, scope, done));
  return button;
}

async function forget(service, scope, done) {
  const says = el("p", {}, "Asking what there is of it…");
  const counting = service.post("forget", { ...scope, dry_run: true }).then(({ agents }) => { says.textContent = foundOf(agents); });
  counting.catch((error) => { says.textContent = `What there is of it cannot be told: ${error.message}`; });
  const forgotten = await confirmed({
    title: `Forget ${nameOf(scope)}?`,
    says: [says, "Adapters become, to the byte, those of an agent who never saw it, and its text is erased. The ledger keeps its rows, which hold no text, and tells of this. It cannot be undone."],
    action: "Forget",
    danger: true,
    change: () => service.post("forget", scope),
  });
  if (!forgotten) return;
  announce(`${nameOf(scope)} is forgotten.`);
  await done();
}

function nameOf({ signal, agent, context }) {
  if (signal !== undefined) return `signal ${signal}`;
  return context === undefined ? `all of ${agent}` : `${agent}'s context ${context}`;
}

function foundOf(agents) {
  if (agents.length === 0) return "Nothing of it is left to forget.";
  return agents.map((own) => `Of ${own.agent}: ${many(own.turns, "turn")}, ${many(own.signals, "signal")} and ${many(own.lessons, "lesson")}; `
    + `${many(own.steps, "step")} will be left out of her adapters.`).join(" ");
}
