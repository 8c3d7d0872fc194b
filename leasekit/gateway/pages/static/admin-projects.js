// Policies of projects, the rules by which people are told of leases, and what was sent by them.

import { ask, get, here, latest, path, post, tagOf } from "./api.js";
import { button, chip, choice, field, fill, h, paged, table } from "./dom.js";
import { onlyLooks, setView, view } from "./frame.js";
import { inputOf, read, words } from "./schema-form.js";
import * as time from "./time.js";

const done = () => h("span", { class: "hidden" }, "Do");
const PAGE = 50;
const POLICY_HELP = {
  longest: "From start to end, extensions included, such as 8h.", ahead: "How long before its start a lease is asked for at most.", lead: "How long before its start a lease is asked for at least.",
  most_units: "Of one lease.", recurring: "Whether leases may recur.", approve_units: "What has more units is approved first.", approve_length: "What lasts longer is approved first.",
  approvers: "Who approves beside managers, with commas between.", approve_within: "After so long what nobody has decided is over.", ask: "The URL of a service that is asked before a request is sent on.",
  asked_as: "By which protocol.", ask_within: "So long it is waited for.", fails: "Where it does not answer: open lets requests through.", hands: "Who hands a lease to a colleague: its holder or managers, managers alone, or nobody.",
};
const POLICY_LABELS = {
  ahead: "Asked ahead at most", lead: "Asked ahead at least", approve_units: "Approved above, units", approve_length: "Approved above, length",
  approve_within: "Decided within", ask: "Service asked", asked_as: "Its protocol", ask_within: "It answers within", fails: "If it is silent", hands: "Handed over by",
};
const text = (value) => (Array.isArray(value) ? value.join(", ") : value === true ? "yes" : value === false ? "no" : String(value));

/** What the leases of each project may be: an operator's to say. */
export function policies(world) {
  const place = h("section", {}), fields = world.schemas.LeasePolicy.properties;

  const load = latest(async (last) => {
    const { items } = await get("/policies"), match = tagOf("/policies");
    if (!last()) return;
    fill(place, h("h2", {}, "Policies"), table("Policies", ["Project", "Leases", done()], items.map((one) => [one.project, said(one.policy),
      here.operates ? button("Change…", () => change(one, match), { "aria-label": `Change the policy of ${one.project}` }) : ""])));
  });

  function said(policy) {
    const given = Object.entries(policy).filter(([, value]) => value !== null && value !== "");
    return given.length ? given.map(([name, value]) => `${name.replaceAll("_", " ")}: ${text(value)}`).join(" · ") : h("span", { class: "dim" }, "not limited");
  }

  function change({ project, policy }, match) {
    const inputs = Object.entries(fields).map(([name, schema]) => {
      const value = policy[name] ?? schema.default;
      return [name, inputOf(name, schema, typeof value === "boolean" ? value : value ? text(value) : "")];
    });
    const body = () => Object.fromEntries(inputs.map(([name, input]) => [name, read(input, fields[name])]).filter(([, value]) => value !== undefined));
    world.form(`Policy of ${project}`, "Set", "The policy holds from now on.", () => ask("PUT", `/policies/${encodeURIComponent(project)}`, { body: body(), match }),
      h("div", { class: "fields" }, inputs.map(([name, input]) => field(POLICY_LABELS[name] ?? words(name), input, POLICY_HELP[name]))));
  }

  return { place, load };
}

/** Who is told of what: one's own rules; a manager sees everybody's. */
export function rules(world) {
  const place = h("section", {}), turned = {}, fields = world.schemas.NotificationRuleRequest.properties;

  const load = latest(async (last) => {
    const { items } = await get("/notifications", { project: world.project });
    if (!last()) return;
    fill(place, h("h2", {}, `Rules by which people are told, ${world.project}`),
      items.length ? paged(turned, PAGE, "Rules", ["Told", "To", "Of", "Before ends", "Before starts", "By", done()], items, row) : h("p", { class: "dim" }, "None: nobody is told what happens to leases."),
      world.uses(world.project) ? button("New rule…", make, { class: "do" }) : onlyLooks(world.project));
  });

  function row(one) {
    const to = one.url || one.mail, where = `/notifications/${encodeURIComponent(one.id)}`;
    return [one.events.map((event) => event.replaceAll("_", " ")).join(", "), h("span", { class: "why" }, to), one.type || "all types", (one.ends ?? []).join(", "), (one.starts ?? []).join(", "), one.caller, h("span", { class: "group" },
      button("Test", () => world.act("Something is sent. The deliveries say what became of it.", () => post(`${where}/test`)), { "aria-label": `Test ${to}` }),
      button("Remove", () => world.act("There is no such rule any more.", () => post(`${where}/remove`)), { class: "danger", "aria-label": `Remove ${to}` }))];
  }

  function make() {
    const boxes = fields.events.items.enum.filter((one) => one !== "test").map((one) => h("input", { type: "checkbox", value: one }));
    const start = { ends: "7d, 3d, 1d", starts: "1h" };
    const inputs = ["url", "mail", "type", "ends", "starts"].map((name) => [name, inputOf(name, fields[name], start[name] ?? "")]);
    const [url, mail, type, ends, starts] = inputs.map(([, input]) => input);
    const body = () => ({ events: boxes.filter((box) => box.checked).map((box) => box.value), ...Object.fromEntries(inputs.map(([name, input]) => [name, read(input, fields[name])])) });
    world.form(`New rule of ${world.project}`, "Make", "The rule is there.", () => post("/notifications", body(), { project: world.project }),
      h("fieldset", {}, h("legend", {}, "Told of"), boxes.map((box) => h("label", { class: "check" }, box, box.value.replaceAll("_", " ")))),
      field("Webhook", url, "A URL, which gets CloudEvents. Either this, or mail."), field("Mail", mail), field("Type", type, "Of leases of this type alone. Empty: of all."),
      h("div", { class: "pair" }, field("Before an end", ends, "With commas between."), field("Before a start", starts, "With commas between.")));
  }

  return { place, load };
}

const STATES = [["", "all"], "waiting", "done", "dead"], ORDER = ["dead", "waiting", "done"], KINDS = { waiting: "waits", done: "granted", dead: "failed" };

/** What was sent by these rules, waits, or was tried too often. */
export function deliveries(world) {
  const place = h("section", {}), list = h("div", {}), turned = {};
  const state = () => (["waiting", "done", "dead"].includes(view().state) ? view().state : "");
  fill(place, h("h2", {}, "Deliveries"), h("div", { class: "tools" }, field("State", choice(STATES, state(), (value) => { setView({ state: value }); load(); }))), list);

  const load = latest(async (last) => {
    const of = { project: world.project };
    const [{ items }, { items: by }] = await Promise.all([get("/notifications/deliveries", { ...of, state: state() }), get("/notifications", of)]);
    if (!last()) return;
    const to = new Map(by.map((one) => [one.id, one.url || one.mail]));
    items.sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state));
    fill(list, items.length ? paged(turned, PAGE, "Deliveries", ["What", "To", "State", "Tries", "Problem", `Next (${time.zone()})`, done()], items, (one) => row(one, to.get(one.rule) ?? "")) : h("p", { class: "dim" }, "None."));
  });

  function row(one, to) {
    const lease = one.lease && h("a", { href: path(`leases/${encodeURIComponent(one.lease)}`, { project: world.project }) }, one.lease);
    return [[one.event.replaceAll("_", " "), lease && " ", lease], h("span", { class: "why" }, to), chip(one.state, KINDS[one.state]), String(one.tries), h("span", { class: "why" }, one.problem), one.next ? time.moment(Date.parse(one.next), true) : "",
      one.state === "dead" ? button("Retry", () => world.act("It is tried again.", () => post(`/notifications/deliveries/${encodeURIComponent(one.id)}/retry`)), { "aria-label": `Retry ${one.event} to ${to}` }) : ""];
  }

  return { place, load };
}
