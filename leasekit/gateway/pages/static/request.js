// A request in all its words: a form that is made of the API's schema, which says what would be answered before it is sent.

import { refused } from "./acts.js";
import { Problem, get, listen, path, post } from "./api.js";
import { button, choice, field, fill, h } from "./dom.js";
import { myProjects, noProject, nothingOffered, onlyLooks, page, setView, view } from "./frame.js";
import { Trying, verdict } from "./lease-actions.js";
import { NOT_OF_SERIES, Recurring, showDays } from "./recurring.js";
import { mayFitLater, Offers } from "./reserve.js";
import { inputOf, read, words } from "./schema-form.js";
import { Templates } from "./templates.js";
import * as time from "./time.js";

const FIRST = ["type", "units", "length", "start", "site", "filter", "name"];
const LABELS = { length: "For how long", start: "From", end: "Until", deferrable_until: "May begin until", needs: "Needs", elastic: "Would do with", keepalive: "Ends when silent for", timeout: "Answer within" };
const HELP = {
  length: "Such as 90m, 2h or 1d 12h.", filter: 'Units with these attributes, such as soc == "imx8" and ram >= 4.', start: "Empty: as soon as it can.",
  elastic: "With so few units it would do as well, if there are no more.", preemptible: "Others may have it end early, for a better price or place.",
  keepalive: "It is closed when its holder was not heard of for so long.", deferrable_until: "It may wait, and begin at this time at the latest.",
  needs: "What each machine is to have of a host, a line for each: cpu=2.", timeout: "So long the broker may let it wait.", slice: "Leases of a slice are looked at, and closed, together.",
  group: "All requests of a group are granted together, or none.", group_size: "How many requests the group has.", after: "It is redeemed when this lease is active.",
  configuration: "What drivers are told, a line for each: key=value.", properties: "What the broker is told, a line for each: key=value.", bid: "What one would pay for a unit at most.",
};
const RECUR = { every: "On", begin: "At", finish: "To", until: "Last day", zone: "Zone of the hours" };
const defaultOf = (name) => ({ units: "1", length: "1h" })[name] ?? "";

function made(name, schema, value, types) {
  const start = value ?? defaultOf(name);
  // What the address says is asked for, also where there is no such thing: then the answer says so.
  const among = (known, first) => choice([...first, ...new Set([...known, ...(start ? [start] : [])])], start, null, { name });
  if (name === "type") return among(types.map((one) => one.type), []);
  if (name === "site") return among(types.flatMap((one) => one.classes.map((each) => each.site)), [["", "any"]]);
  return inputOf(name, schema, schema.type === "boolean" ? start === "yes" : start, name === "units");
}

await page(async (place) => {
  const shown = view();
  const [{ projects, uses }, document_, { items: types }] = await Promise.all([myProjects(), get("/openapi.json"), get("/types")]);
  if (!projects.length || !types.length) {
    fill(place, projects.length ? nothingOffered() : noProject());
    return;
  }
  const project = projects.includes(shown.project) ? shown.project : projects.find(uses) ?? projects[0];
  const ofProject = projects.length > 1 && field("Project", choice(projects, project, (value) => { setView({ project: value }); location.reload(); }));
  if (!uses(project)) {
    fill(place, ofProject, onlyLooks(project));
    return;
  }
  const schema = document_.components.schemas.LeaseRequest.properties;
  const answer = h("div", { class: "answer", role: "status" }, h("p", { class: "dim" }, "Say what you want: the answer comes as you type."));
  const offers = new Offers(), trying = new Trying(answer, told, named), inputs = new Map(), recurring = new Recurring(shown);
  const templates = new Templates(project, () => body(), () => (recurring.on ? recurring.hours() : null), (name) => inputs.get(name).value);

  for (const [name, kind] of Object.entries(schema)) inputs.set(name, made(name, kind, shown[name], types));
  const labelOf = (name) => LABELS[name] ?? words(name);
  const of = (name) => field(labelOf(name), inputs.get(name), HELP[name]);
  const send = h("button", { class: "do", type: "submit" }, "Request"), tryDays = button("Try", () => form.reportValidity() && askDays(true));
  const form = h("form", { class: "request", on: { input: changed, submit } },
    h("div", { class: "fields" },
      ofProject, FIRST.map(of)),
    h("details", { open: Object.keys(shown).some((name) => schema[name] && !FIRST.includes(name)) }, h("summary", {}, "More"), h("div", { class: "fields" }, Object.keys(schema).filter((name) => !FIRST.includes(name)).map(of))),
    recurring.place, answer, offers.place,
    h("div", { class: "buttons" }, send, tryDays, templates.place));
  fill(place, form, templates.dialog);
  changed();
  await templates.load();
  listen({ project }, () => {}, () => recurring.on || changed());

  function body() {
    const found = {};
    for (const [name, input] of inputs) {
      const value = input.disabled ? undefined : read(input, schema[name]);
      if (value !== undefined) found[name] = value;
    }
    return found;
  }

  /** The words of a refusal, which begin with a field of the API, with its label here. */
  function named(words_) {
    return words_.replace(/^(?:(?:request|properties)\.)?([a-z_]+): /, (all, name) => {
      const label = (recurring.on && RECUR[name]) || (schema[name] && labelOf(name));
      return label ? `${label}: ` : all;
    });
  }

  function changed() {
    const values = {};
    for (const [name, input] of inputs) values[name] = input.type === "checkbox" ? (input.checked ? "yes" : "") : input.value === defaultOf(name) ? "" : input.value;
    setView({ ...values, ...recurring.values() });
    offers.clear();
    tryDays.hidden = !recurring.on;
    for (const name of NOT_OF_SERIES) inputs.get(name).disabled = recurring.on;
    if (recurring.on) {
      trying.stop();
      send.disabled = false;
      delete answer.dataset.kind;
      fill(answer, h("p", { class: "dim" }, "Try says of each day what would be answered."));
      return;
    }
    trying.tryForm(form, () => ["/leases/dry-run", body(), { project }], 250);
  }

  function told(found) {
    send.disabled = found instanceof Problem || found.status === "refused";
    if (!mayFitLater(found)) return;
    const { type, units, site, filter, needs, length, start, end } = body();
    const span = length ? time.toSpan(length) : Date.parse(end) - (start ? Date.parse(start) : Date.now());
    offers.look({ type, units, site, filter, needs, ...(start && Date.parse(start) > Date.now() ? { start } : {}) }, span, project, (slot, from) => {
      inputs.get("start").value = time.toExactInput(from);
      inputs.get("site").value = slot.site;
      changed();
      send.focus();
    });
  }

  /** Ask for all days, or what would be answered. */
  async function askDays(tried) {
    const series = recurring.body(body());
    send.disabled = tryDays.disabled = true;
    fill(answer, h("p", { class: "dim" }, "Asking for each day…"));
    try {
      showDays(answer, await post(`/leases/series${tried ? "/dry-run" : ""}`, series, { project }), project, tried);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      verdict(answer, problem, named);
      if (problem.code === "approval_needed") refused(problem, [{ series }, project]);
    } finally {
      send.disabled = tryDays.disabled = false;
    }
  }

  async function submit(event) {
    event.preventDefault();
    if (recurring.on) {
      await askDays(false);
      return;
    }
    send.disabled = true;
    try {
      const lease = await post("/leases", body(), { project });
      location.href = path(`leases/${encodeURIComponent(lease.id)}`, { project: lease.project });
    } catch (problem) {
      send.disabled = false;
      refused(problem, [{ request: body() }, project]);
    }
  }
});
