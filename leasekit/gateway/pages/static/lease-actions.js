// What one does to a lease: extend, change, close. Each says beforehand what would be answered, where the API can tell.

import { did } from "./acts.js";
import { Problem, ask, get, post } from "./api.js";
import { h, fill, field, button, chip } from "./dom.js";
import * as time from "./time.js";

export const OVER = ["closed", "failed"];

/** A lease's state, in words: one that has what it goes on by is as active as others. */
export const stateOf = (lease) => (lease.state === "active_ticketed" ? "active" : lease.state);

/** A word of the API as people write it. */
export const plain = (word) => word.replaceAll("_", " ");

/** When a lease ends, in ms, after all that it was extended by. */
export const lastEnd = (lease) => Date.parse(lease.extended_to ?? lease.end);

/** Whether a lease may still be changed. */
export const goesOn = (lease) => !OVER.includes(lease.state) && lease.pending !== "closing";

/** Whether a lease may go on for longer: of one that has not begun the end is changed. */
export const extends_ = (lease) => goesOn(lease) && stateOf(lease) === "active";

/** What a broker would answer, in an element: `tried` is a DryRunResult, or a Problem, whose words `named` may change. */
export function verdict(place, tried, named = (words) => words) {
  if (tried instanceof Problem) {
    place.dataset.kind = "refused";
    fill(place, h("p", {}, chip("refused"), " ", named(tried.message)));
    return;
  }
  place.dataset.kind = tried.status;
  const term = tried.start && tried.end ? time.term(Date.parse(tried.start), Date.parse(tried.end)) : "";
  fill(place,
    h("p", {}, chip(tried.status), tried.status === "granted" ? ` ${tried.units} ${tried.units === 1 ? "unit" : "units"} at ${tried.site}` : ` ${time.dated(tried.reason)}`),
    term && h("p", { class: "dim" }, term),
    tried.earliest && !tried.reason.includes("earliest") && h("p", {}, `It would fit at ${time.moment(Date.parse(tried.earliest))}.`));
}

/** Asks again and again what would be answered: only the last question counts, and each has a moment to be overtaken. */
export class Trying {
  #abort = null;
  #timer = 0;

  constructor(place, shown = () => {}, named = undefined) {
    Object.assign(this, { place, shown, named });
  }

  /** Ask the API by `path` and `body`, after `wait` milliseconds. */
  try(path, body, query, wait = 120) {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#abort = new AbortController();
    const { signal } = this.#abort;
    this.#timer = setTimeout(async () => {
      let found;
      try {
        found = await post(path, body, query, signal);
      } catch (error) {
        if (error.name === "AbortError") return;
        if (!(error instanceof Problem)) throw error;
        found = error;
      }
      if (signal.aborted) return;
      verdict(this.place, found, this.named);
      if (found.approval) this.place.append(h("p", {}, chip("to be approved", "waits"), ` ${found.approval}.`));
      this.shown(found);
    }, wait);
  }

  /** The same of what a form says, if it says what may be asked; else which field does not. */
  tryForm(form, asked, wait) {
    const wrong = [...form.elements].find((one) => one.validity && !one.validity.valid);
    if (!wrong) return this.try(...asked(), wait);
    this.stop();
    delete this.place.dataset.kind;
    const label = wrong.labels?.[0]?.textContent ?? wrong.getAttribute("aria-label") ?? wrong.name;
    return fill(this.place, h("p", {}, `${label}: ${wrong.title && wrong.value ? wrong.title : wrong.validationMessage}`));
  }

  stop() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
  }
}

const of = (lease) => `/leases/${encodeURIComponent(lease.id)}`;

export const title = (lease) => lease.name || lease.id;

/** Who asked for a lease, or to whom it was handed since, by its history. */
export const whose = (history) => history.findLast((one) => ["lease.request", "topology.request", "handed"].includes(one.event))?.values.who;

/** A lease of any project, as an operator is to know it: its name, whose it is, its id; the id alone until that is known, or where its project can't say. */
export function known(id) {
  const at = `/leases/${encodeURIComponent(id)}`, place = h("span", {}, `lease ${id}`);
  Promise.all([get(at), get(`${at}/history`)]).then(
    ([lease, { items }]) => fill(place, [lease.name && `lease ${lease.name}`, [whose(items), lease.project].filter(Boolean).join(", "), id].filter(Boolean).join(" · ")),
    (problem) => { if (!(problem instanceof Problem)) throw problem; });
  return place;
}

/** The answer to a form's question, above its buttons. */
const answers = () => h("div", { class: "answer", role: "status" }, h("p", { class: "dim" }, "Not asked yet."));

/** What a lease is to go on for. */
export const lengthInput = (value = "1h") => h("input", { value, name: "length", required: true, pattern: "\\s*(\\d+\\s*[wdhms]\\s*)+", title: "A number and a unit, such as 90m, 2h or 1d 12h" });

/** A form by which a lease goes on for longer; `done` is called when it was asked for. */
export function extendForm(lease, done) {
  const place = answers(), trying = new Trying(place);
  const length = lengthInput();
  const units = h("input", { type: "number", min: 1, value: lease.units, name: "units", required: true });
  const victims = members(lease, () => tries());
  const body = () => ({
    length: length.value.replaceAll(" ", ""), units: Number(units.value) === lease.units ? undefined : Number(units.value), // it may have others by now
    victims: Number(units.value) < lease.units ? victims.chosen() : [],
  });
  const tries = () => {
    victims.place.hidden = !(Number(units.value) < lease.units && lease.members?.length);
    trying.tryForm(form, () => [`${of(lease)}/extend/dry-run`, body(), { project: lease.project }]);
  };
  const form = h("form", { on: { input: tries, submit: async (event) => {
    event.preventDefault();
    const approval = [{ lease: lease.id, extend: body() }, lease.project];
    if (await did(`${title(lease)} is to go on for ${body().length} more.`, () => post(`${of(lease)}/extend`, body(), { project: lease.project }), { approval })) done();
  } } },
    h("div", { class: "pair" }, field("For", length, "How much longer, such as 90m, 2h or 1d 12h."), field("Units", units, "From the old end on: more, or fewer.")),
    victims.place, place,
    h("div", { class: "buttons" }, h("button", { class: "do", type: "submit" }, "Extend"), button("Cancel", done)));
  tries();
  return form;
}

/** A form by which the last extension of a lease is taken back. */
export function undoForm(lease, done) {
  return h("form", { on: { submit: async (event) => {
    event.preventDefault();
    if (await did(`The extension of ${title(lease)} is taken back.`, () => post(`${of(lease)}/undo-extend`, {}, { project: lease.project }))) done();
  } } },
    h("p", {}, `Take the last extension of ${title(lease)} back? Its time goes back.`),
    h("div", { class: "buttons" }, h("button", { class: "danger", type: "submit" }, "Take it back"), button("Keep", done)));
}

/** Which units leave, where a lease shrinks. */
function members(lease, changed) {
  const boxes = (lease.members ?? []).map((one) => h("input", { type: "checkbox", value: one.unit, on: { change: changed } }));
  const place = h("fieldset", { hidden: true }, h("legend", {}, "Units that leave"), boxes.map((box) => h("label", { class: "check" }, box, box.value, " ")));
  return { place, chosen: () => boxes.filter((box) => box.checked).map((box) => box.value) };
}

/** A form by which a lease is changed: its units and end, before it begins its start and filter too. */
export function changeForm(lease, done, wished = {}) {
  const undo = (found) => { if (found.code === "goes_on" && lease.undo) place.append(button("Undo extension…", () => form.replaceWith(undoForm(lease, done)))); };
  const place = answers(), trying = new Trying(place, undo), begun = Date.parse(lease.start) <= Date.now() || lease.state === "active";
  const units = h("input", { type: "number", min: 1, value: lease.units, name: "units", required: true });
  const start = h("input", { type: "datetime-local", step: 60, value: time.toInput(wished.start ?? Date.parse(lease.start)), name: "start", disabled: begun });
  const end = h("input", { type: "datetime-local", step: 60, value: time.toInput(wished.end ?? lastEnd(lease)), name: "end", required: true });
  const victims = members(lease, () => tries());
  const other = (input, was) => (time.toInput(was) === input.value ? undefined : time.iso(time.fromInput(input.value)));
  const body = () => ({
    units: Number(units.value) === lease.units ? undefined : Number(units.value),
    start: begun ? undefined : other(start, Date.parse(lease.start)), end: other(end, lastEnd(lease)),
    victims: Number(units.value) < lease.units ? victims.chosen() : [],
  });
  const later = () => begun && Date.parse(body().end) > lastEnd(lease) && body().units === undefined;
  const call = () => (later() ? [`${of(lease)}/extend`, { end: body().end }] : [`${of(lease)}/modify`, body()]);
  const tries = () => {
    victims.place.hidden = !(Number(units.value) < lease.units && lease.members?.length);
    const asked = body();
    if (asked.units === undefined && asked.start === undefined && asked.end === undefined) {
      trying.stop();
      delete place.dataset.kind;
      fill(place, h("p", { class: "dim" }, "Nothing is changed."));
      return;
    }
    const [path, what] = call();
    trying.tryForm(form, () => [`${path}/dry-run`, what, { project: lease.project }]);
  };
  const form = h("form", { on: { input: tries, submit: async (event) => {
    event.preventDefault();
    const [path, what] = call(), query = { project: lease.project };
    const change = () => (later() ? post(path, what, query) : ask("PATCH", of(lease), { body: what, query }));
    const approval = [{ lease: lease.id, [later() ? "extend" : "modify"]: what }, lease.project];
    if (await did(`A change of ${title(lease)} is asked for.`, change, { approval })) done();
  } } },
    field("Units", units),
    h("div", { class: "pair" }, field(`From (${time.zone()})`, start), field(`To (${time.zone()})`, end)),
    victims.place, place,
    h("div", { class: "buttons" }, h("button", { class: "do", type: "submit" }, "Change"), button("Cancel", done)));
  tries();
  return form;
}

const AT_ONCE = 4; // a browser has six connections to a host: the page itself needs some

/** Do something to each lease, and say so once; `place` says how far that is. Gives those to which it was not done, and says why of the first of them. */
async function didEach(leases, what, doing, place) {
  const waiting = [...leases], problems = new Map();
  const bar = h("progress", { max: leases.length, value: 0, "aria-label": "How many are done" }), words = h("span", {}, ` 0 of ${leases.length}`);
  const work = async () => {
    for (let lease; (lease = waiting.shift());) {
      try {
        await doing(lease);
      } catch (problem) {
        if (!(problem instanceof Problem)) throw problem;
        problems.set(lease, problem);
      }
      bar.value += 1;
      words.textContent = ` ${bar.value} of ${leases.length}`;
    }
  };
  if (leases.length > AT_ONCE) fill(place, h("p", {}, bar, words));
  const left = () => leases.filter((lease) => problems.has(lease));
  await did(`${leases.length === 1 ? title(leases[0]) : `${leases.length} leases`}: ${what}`, async () => {
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    const [first] = left(), why = problems.get(first);
    if (why) throw leases.length === 1 ? why : new Problem(why.status, { detail: `${leases.length - problems.size} of ${leases.length} are done. ${title(first)}: ${why.message}` });
    return leases;
  });
  fill(place);
  return left();
}

/** A form by which leases end early. */
export function closeForm(leases, done) {
  let left = leases;
  const reason = h("input", { name: "reason", maxlength: 2000, autocomplete: "off" }), place = h("div", {});
  const words = leases.length === 1 ? title(leases[0]) : `${leases.length} leases`;
  return h("form", { on: { submit: async (event) => {
    event.preventDefault();
    left = await didEach(left, "closing.", (lease) => post(`${of(lease)}/close`, { reason: reason.value }, { project: lease.project }), place);
    if (!left.length) done();
  } } },
    h("p", {}, `End ${words} now? The units are torn down, and the time that is left goes back.`),
    field("Why", reason), place,
    h("div", { class: "buttons" }, h("button", { class: "danger", type: "submit" }, "Close now"), button("Keep", done)));
}

/** A form by which a lease is a colleague's from then on. */
export function handForm(lease, done) {
  const to = h("input", { name: "to", required: true, maxlength: 256, autocomplete: "off" }), reason = h("input", { name: "reason", maxlength: 2000, autocomplete: "off" });
  return h("form", { on: { submit: async (event) => {
    event.preventDefault();
    if (await did(`${title(lease)} is ${to.value}'s.`, () => post(`${of(lease)}/hand`, { to: to.value, reason: reason.value }, { project: lease.project }))) done();
  } } },
    h("p", {}, `Have ${title(lease)} be a colleague's. Who uses the project may change it as before.`),
    field("To", to, "A user of the project, by the name that they log in with."), field("Why", reason),
    h("div", { class: "buttons" }, h("button", { class: "do", type: "submit" }, "Hand over"), button("Keep", done)));
}

/** Extend many at once. */
export function extendMany(leases, done) {
  const length = lengthInput(), place = h("div", {});
  let left = leases;
  return h("form", { on: { submit: async (event) => {
    event.preventDefault();
    const wanted = length.value.replaceAll(" ", "");
    left = await didEach(left, `to go on for ${wanted} more.`, (lease) => post(`${of(lease)}/extend`, { length: wanted }, { project: lease.project }), place);
    if (!left.length) done();
  } } },
    h("p", {}, `Have ${leases.length} ${leases.length === 1 ? "lease" : "leases"} go on for longer.`),
    field("For", length, "How much longer, such as 90m, 2h or 1d 12h."), place,
    h("div", { class: "buttons" }, h("button", { class: "do", type: "submit" }, "Extend"), button("Cancel", done)));
}

/** How a unit is reached by ssh; empty where it says nothing of a login. */
export function sshLine(properties) {
  if (!properties.host || !(properties.host_key || properties.user)) return "";
  const port = properties.port && properties.port !== "22" ? `-p ${properties.port} ` : "";
  return `ssh ${port}${properties.user ?? "root"}@${properties.host}`;
}
