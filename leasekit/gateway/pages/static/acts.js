// What one does by a page: it is done and said, or why not is; with a reason where one is asked for it.

import { Problem, latest, path, post } from "./api.js";
import { button, called, field, fill, h } from "./dom.js";
import { failed, loading, note } from "./frame.js";

/** Do something, and say so. Gives what it gave, or null where it was refused; `link`, and `words` that are a function, are
 * made of what it gave. Where a policy wants it approved first, that is asked for: `approval` is [what `POST /approvals` is sent, the project]. */
export async function did(words, doing, { link, approval } = {}) {
  const form = submitted;
  busy(form, 1);
  try {
    const made = await doing();
    note(typeof words === "function" ? words(made) : words, { link: link?.(made) });
    return made;
  } catch (problem) {
    refused(problem, approval);
    return null;
  } finally {
    busy(form, -1);
  }
}

// What a form asks for is not asked for twice, as long as there is no answer.
let submitted = null;
const underWay = new Map();
document.addEventListener("submit", (event) => {
  if (!underWay.has(event.target)) submitted = event.target;
  else {
    event.preventDefault();
    event.stopImmediatePropagation();
  }
}, true);
document.addEventListener("submit", () => { submitted = null; });

function busy(form, by) {
  const count = (underWay.get(form) ?? 0) + by;
  if (count) underWay.set(form, count);
  else underWay.delete(form);
  form?.toggleAttribute("data-busy", count > 0);
}

/** Say why something was not done, or ask that it be approved. Throws what is no answer of the API. */
export function refused(problem, approval) {
  if (!(problem instanceof Problem)) throw problem;
  if (approval && problem.code === "approval_needed") askApproval(`${problem.message}.`, ...approval);
  else note(problem.message, { refused: true });
}

const AGAIN_MS = 2000;

/** A load of what a page shows, of which the last one counts. That it can't be had is noted, and what is shown stays; where nothing is yet, the page says it, or the `place`
 * that is given; and who is away is asked again. Called with true it begins anew, for something else than what was shown. */
export function shows(load, place = null) {
  let shown = false;
  const run = latest(async (last, anew) => {
    if (anew === true) shown = false;
    if (!shown && place) fill(place);
    const loaded = !shown && place && !document.querySelector("#page[aria-busy]") ? loading(place) : () => {};
    try {
      await load(last);
      shown ||= last();
    } catch (problem) {
      if (!(problem instanceof Problem) || !(shown || place)) throw problem;
      if (!last()) return;
      if (shown) note(problem.message, { refused: true });
      else fill(place, failed(problem, () => run(true)));
      if (problem.code === "away") setTimeout(() => { if (last()) run(); }, AGAIN_MS);
    } finally {
      loaded();
    }
  });
  return run;
}

/** Of whom a page has nothing, as they are away; it is asked for `again` soon. */
export function whoIsAway(names, again) {
  if (!names.length) return null;
  setTimeout(again, AGAIN_MS);
  return h("p", { class: "note refused", role: "status" }, `Away: ${names.join(", ")}. What is theirs is not shown.`);
}

/** A dialog, in which a form is shown. */
export class Dialog {
  place = h("dialog", { class: "dialog", on: { close: () => this.#back() } });
  #from = null;

  /** Show a form, below a `heading` where it has none. */
  open(form, heading = "") {
    const from = document.activeElement;
    if (from !== document.body && !this.place.contains(from)) this.#from = from;
    fill(this.place, heading && h("h2", {}, heading), form);
    this.place.setAttribute("aria-label", this.place.querySelector("h2, p").textContent);
    this.place.showModal();
    form.querySelector("input, select, textarea")?.focus(); // not the question mark before it
  }

  close() {
    this.place.close();
  }

  /** The button that was pressed may be another one by now. */
  #back() {
    if (this.#from?.isConnected === false) [...document.querySelectorAll(this.#from.localName)].find((one) => called(one) === called(this.#from))?.focus();
  }
}

/** A dialog that is there until it is closed. */
export function passingDialog() {
  const dialog = new Dialog();
  dialog.place.addEventListener("close", () => dialog.place.remove());
  document.body.append(dialog.place);
  return dialog;
}

/** A form that asks why, and what else there are `fields` for, and then does it. */
export function whyForm(words, verb, doing, away, kind = "danger", ...fields) {
  const reason = h("input", { name: "reason", maxlength: 2000, autocomplete: "off" });
  return h("form", { on: { submit: (event) => { event.preventDefault(); doing(reason.value); } } },
    h("p", {}, words), field("Why", reason), fields,
    h("div", { class: "buttons" }, h("button", { class: kind, type: "submit" }, verb), button("Cancel", away)));
}

function askApproval(words, asked, project) {
  const dialog = passingDialog();
  const ask = async (reason) => {
    const link = () => h("a", { href: path("approvals", { project }) }, "Approvals");
    if (await did("It waits to be approved.", () => post("/approvals", { ...asked, why: reason }, { project }), { link })) dialog.close();
  };
  dialog.open(whyForm(words, "Ask for approval", ask, () => dialog.close(), "do"));
}
