// The form by which one reserves: what, how many, from when to when; it says what would be answered, and what would do.

import { did, passingDialog, refused } from "./acts.js";
import { post, path, Problem } from "./api.js";
import { h, fill, field, choice, button } from "./dom.js";
import { note } from "./frame.js";
import { Trying } from "./lease-actions.js";
import * as time from "./time.js";

const OFFERED = 4;
const HOPELESS = ["too_large", "mapper:bad_request"];

/** Whether another time may do, by the answer to a dry run. */
export function mayFitLater(found) {
  if (found instanceof Problem) return found.status === 409;
  return found.status !== "granted" && !HOPELESS.includes(found.code);
}

/** Where something would fit that does not as it was asked for: windows to click, and what stands in the way. */
export class Offers {
  #abort = null;

  constructor() {
    this.place = h("div", { class: "offers", "aria-live": "polite" });
  }

  clear() {
    this.#abort?.abort();
    fill(this.place);
  }

  /** Look for windows of `length` ms for a body of `POST /slots`; `take` is called with the one that is clicked. */
  async look(asked, length, project, take) {
    this.#abort?.abort();
    this.#abort = new AbortController();
    fill(this.place, h("p", { class: "dim" }, "Looking for what would do…"));
    const body = { ...asked, length: `${Math.max(1, Math.round(length / time.SECOND))}s`, limit: OFFERED };
    try {
      this.#show(await post("/slots", body, { project }, this.#abort.signal), body, project, take);
    } catch (error) {
      if (error.name !== "AbortError") fill(this.place, h("p", { class: "dim" }, error.message));
    }
  }

  #show(told, asked, project, take) {
    const units = asked.units ?? 1;
    const there = Math.max(0, units - told.short);
    const why = told.short > 0 && h("p", {}, h("meter", { min: 0, max: units, value: there, "aria-label": "How many are free" }), ` ${there} of ${units} free then: ${told.short} short.`);
    const own = told.leases?.length > 0 && h("p", { class: "dim" }, "Your own in the way: ", told.leases.slice(0, 5).map((id, index) => [index ? ", " : "", h("a", { href: path(`leases/${encodeURIComponent(id)}`, { project }) }, id)]));
    const offers = told.items.map((slot) => {
      const start = Date.parse(slot.start), end = Date.parse(slot.end);
      return button([h("strong", {}, time.term(start, end)), h("span", { class: "dim" }, `${slot.site} · ${time.until(start)}`)], () => take(slot, start, end), { class: "offer" });
    });
    const never = told.reason ? `It fits nowhere within 30 days: ${told.reason}` : "It fits nowhere within 30 days.";
    fill(this.place, why, own, h("p", { class: "dim" }, offers.length ? "It fits at:" : never), offers,
      button("Tell me when it is free…", () => waitFor(asked, told.items[0], project)));
  }
}

/** Ask to be told when something fits that does not now; `first` is the first window in which it would. */
function waitFor({ limit, ...asked }, first, project) {
  const dialog = passingDialog(), now = Date.now(), later = first ? Date.parse(first.start) - time.SECOND : now + time.DAY;
  const by = h("input", { type: "datetime-local", name: "by", step: 1, required: true, value: time.toExactInput(asked.start ? Date.parse(asked.start) : later) });
  const ask = async (event) => {
    event.preventDefault();
    const body = { ...asked, end: time.iso(time.fromInput(by.value) + time.toSpan(asked.length)) };
    const link = () => h("a", { href: path("waits", { project }) }, "Waiting list");
    if (await did("You are told when it is free.", () => post("/waits", body, { project }), { link })) dialog.close();
  };
  dialog.open(h("form", { on: { submit: ask } },
    h("h2", {}, `When ${asked.units ?? 1} × ${asked.type} would fit`),
    field(`To begin by (${time.zone()})`, by, "You are told once, if it would fit for a start until then. Nothing is held for you."),
    h("div", { class: "buttons" }, h("button", { class: "do", type: "submit" }, "Tell me"), button("Cancel", () => dialog.close()))));
}

/** A form for `wish`: {type, site, filter, units, start, end, project, projects, most}. `on`: changed(wish), done(lease), away(). */
export class Reserving {
  constructor(wish, on) {
    this.wish = { units: 1, name: "", ...wish };
    this.on = on;
    this.answer = h("div", { class: "answer", role: "status" }, h("p", { class: "dim" }, "Asking…"));
    this.offers = new Offers();
    this.trying = new Trying(this.answer, (found) => this.#told(found));
    this.units = h("input", { type: "number", min: 1, value: this.wish.units, required: true, name: "units" });
    this.name = h("input", { name: "name", maxlength: 256, autocomplete: "off", value: this.wish.name });
    this.start = h("input", { type: "datetime-local", name: "start", required: true });
    this.end = h("input", { type: "datetime-local", name: "end", required: true });
    this.send = h("button", { class: "do", type: "submit" }, "Reserve");
    this.place = h("form", { on: { submit: (event) => this.#submit(event) } },
      wish.projects?.length > 1 && field("Project", choice(wish.projects, wish.project, (value) => { this.wish.project = value; this.#try(); })),
      h("div", { class: "pair" }, field("Units", this.units), field("Name", this.name, "What you call it. Not needed.")),
      field(`From (${time.zone()})`, this.start), field(`To (${time.zone()})`, this.end),
      this.answer, this.offers.place,
      h("div", { class: "buttons" }, this.send, button("Cancel", () => { this.stop(); on.away(); })));
    for (const input of [this.units, this.start, this.end]) input.addEventListener("input", () => this.#typed());
    this.set(this.wish.start, this.wish.end);
  }

  /** Another term. */
  set(start, end) {
    this.wish.start = start;
    this.wish.end = end;
    this.start.value = time.toInput(start);
    this.end.value = time.toInput(end);
    this.end.setCustomValidity("");
    this.#try();
  }

  stop() {
    this.trying.stop();
    this.offers.clear();
  }

  #typed() {
    this.wish.units = Number(this.units.value);
    // An input shows minutes: a time that was not typed is the exact one.
    const read = (input, was) => (input.value === time.toInput(was) ? was : time.fromInput(input.value));
    const start = read(this.start, this.wish.start), end = read(this.end, this.wish.end);
    this.end.setCustomValidity(end <= start ? "expected a time after the start" : "");
    if (!this.place.checkValidity()) {
      this.offers.clear();
      this.trying.tryForm(this.place);
      return;
    }
    this.wish.start = start;
    this.wish.end = end;
    this.on.changed(this.wish);
    this.#try();
  }

  #body() {
    const { type, site, filter, units, start, end } = this.wish;
    const begun = start <= Date.now() ? {} : { start: time.iso(start) };
    return { type, units, site: site ?? "", filter: filter ?? "", ...begun, end: time.iso(end) };
  }

  #try() {
    this.offers.clear();
    this.send.disabled = false;
    this.trying.try("/leases/dry-run", this.#body(), { project: this.wish.project });
  }

  #told(found) {
    const granted = found.status === "granted";
    this.on.answered?.(granted);
    this.send.disabled = found instanceof Problem || found.status === "refused";
    this.send.textContent = found.status === "waits" ? "Ask anyway" : "Reserve";
    if (!mayFitLater(found)) return;
    const { type, site, filter, units, start, end, project } = this.wish;
    const asked = { type, units, site: site ?? "", filter: filter ?? "", ...(start > Date.now() ? { start: time.iso(start) } : {}) };
    this.offers.look(asked, end - start, project, (slot, from, to) => {
      this.wish.site = slot.site;
      this.set(from, to);
      this.on.changed(this.wish);
      this.send.focus();
    });
  }

  async #submit(event) {
    event.preventDefault();
    this.send.disabled = true;
    const request = { ...this.#body(), name: this.name.value };
    try {
      const lease = await post("/leases", request, { project: this.wish.project });
      this.stop();
      const link = h("a", { href: path(`leases/${encodeURIComponent(lease.id)}`, { project: lease.project }) }, lease.name || lease.id);
      note("Asked for", { link });
      this.on.done(lease);
    } catch (problem) {
      refused(problem, [{ request }, this.wish.project]);
      this.#try();
    }
  }
}
