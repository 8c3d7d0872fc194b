// Who may log in, and the tokens by which programs call: what they may do, and what an operator, or who they are of, does about it.

import { ask, get, here, latest, post, tagOf } from "./api.js";
import { button, choice, field, fill, h, hint, paged, table } from "./dom.js";
import { inputOf, read } from "./schema-form.js";
import * as time from "./time.js";

const ROLES = [["", "none"], "viewer", "user", "manager"];
const OFFICES = ["operator", "auditor"], PAGE = 50;
const at = (text) => (text ? time.moment(Date.parse(text)) : "–");
const done = () => h("span", { class: "hidden" }, "Do");
const of = (name) => `/users/${encodeURIComponent(name)}`;

/** What somebody may do, in words. */
function rights({ projects, offices }) {
  return [...offices, ...Object.entries(projects).map(([project, role]) => `${role} of ${project}`)].join(", ") || h("span", { class: "dim" }, "nothing");
}

/** Fields for what somebody may do. */
function rightsFields(world, given = { projects: {}, offices: [] }) {
  const known = [...new Set([...world.projects, ...Object.keys(given.projects)])];
  const roles = known.map((project) => [project, choice(ROLES, given.projects[project] ?? "", null, { name: `role-${project}` })]);
  const offices = OFFICES.map((name) => h("input", { type: "checkbox", value: name, checked: given.offices.includes(name) }));
  const place = h("fieldset", {}, h("legend", {}, "May", " ", hint("May", "A viewer looks, a user leases, a manager approves as well. An operator may do everything, an auditor see everything.")),
    h("div", { class: "fields" }, roles.map(([project, input]) => field(project, input))),
    h("p", {}, offices.map((box) => h("label", { class: "check" }, box, box.value))));
  const read = () => ({
    projects: Object.fromEntries(roles.filter(([, input]) => input.value).map(([project, input]) => [project, input.value])),
    offices: offices.filter((box) => box.checked).map((box) => box.value),
  });
  return { place, read };
}

const password = (name, autocomplete) => h("input", { type: "password", name, autocomplete, required: true, maxlength: 1024 });

/** Local users: an operator's to make, change and remove; everybody else sees, and changes the password of, themselves. */
export function users(world) {
  const place = h("section", {}), turned = {};

  const load = latest(async (last) => {
    const { items } = await get("/users"), match = tagOf("/users");
    if (!last()) return;
    fill(place, h("h2", {}, "Users"),
      items.length ? paged(turned, PAGE, "Users", ["Name", "May", `Since (${time.zone()})`, done()], items, (one) => row(one, match)) : h("p", { class: "dim" }, here.seesAll ? "None." : "You are no local user: you log in elsewhere, or by a token."),
      here.operates && button("Add user…", add, { class: "do" }));
  });

  function row(user, match) {
    return [user.name, rights(user), at(user.created), h("span", { class: "group" },
      here.operates && button("Rights…", () => change(user, match), { "aria-label": `Rights of ${user.name}` }),
      (here.operates || user.name === here.caller) && button("Password…", () => renew(user), { "aria-label": `Password of ${user.name}` }),
      here.operates && button("Remove…", () => remove(user), { class: "danger", "aria-label": `Remove ${user.name}` }))];
  }

  function add() {
    const name = h("input", { name: "name", required: true, maxlength: 64, autocomplete: "off" }), secret = password("password", "new-password"), may = rightsFields(world);
    world.form("Add user", "Add", "The user is there.", () => post("/users", { name: name.value, password: secret.value, ...may.read() }),
      field("Name", name, "Letters, digits and . _ @ -"), field("Password", secret, "At least 12 characters."), may.place);
  }

  function change(user, match) {
    const may = rightsFields(world, user);
    world.form(`Rights of ${user.name}`, "Change", "The rights are others. Sessions have ended.", () => ask("PATCH", of(user.name), { body: may.read(), match }), may.place);
  }

  function renew(user) {
    const old = password("old", "current-password"), secret = password("password", "new-password");
    const body = () => (here.operates ? { password: secret.value } : { password: secret.value, old: old.value });
    world.form(`Password of ${user.name}`, "Change", "The password is another. Sessions have ended.", () => ask("PATCH", of(user.name), { body: body() }),
      !here.operates && field("Password until now", old), field("New password", secret, "At least 12 characters."));
  }

  function remove(user) {
    world.form(`Remove ${user.name}?`, "Remove", "There is no such user any more.", () => ask("DELETE", of(user.name)), h("p", {}, "Sessions, tokens, calendars, rules and waits end as well. Leases stay."));
  }

  return { place, load };
}

/** Outages that are announced to all: an operator's to say. */
export function announcements(world) {
  const place = h("section", {}), fields = world.schemas.AnnouncementRequest.properties;

  const load = latest(async (last) => {
    if (!here.operates) return;
    const { items } = await get("/announcements");
    if (!last()) return;
    fill(place, h("h2", {}, "Announcements"),
      items.length ? table("Announcements", [`When (${time.zone()})`, "What", "By", done()], items.map(row)) : h("p", { class: "dim" }, "No outage is announced."),
      button("Announce an outage…", make, { class: "do" }));
  });

  function row(one) {
    return [time.term(Date.parse(one.start), Date.parse(one.end)), h("span", { class: "why" }, one.text), one.caller,
      button("Remove", () => world.act("It is announced no more.", () => post(`/announcements/${encodeURIComponent(one.id)}/remove`)), { class: "danger", "aria-label": `Remove ${one.text}` })];
  }

  function make() {
    const [text, start, end] = ["text", "start", "end"].map((name) => inputOf(name, fields[name], "", name !== "start"));
    const body = () => ({ text: text.value, start: read(start, fields.start), end: read(end, fields.end) });
    world.form("Announce an outage", "Announce", "It is announced.", () => post("/announcements", body()),
      field("What", text, "Every page shows it until it is over; calendars have it, and rules tell of it."),
      h("div", { class: "pair" }, field(`From (${time.zone()})`, start, "Empty: from now on."), field(`Until (${time.zone()})`, end)));
  }

  return { place, load };
}

/** Tokens: one's own; who sees all sees everybody's. */
export function tokens(world) {
  const place = h("section", {}), turned = {};

  const load = latest(async (last) => {
    const { items } = await get("/tokens");
    if (!last()) return;
    items.sort((a, b) => Date.parse(b.created) - Date.parse(a.created));
    fill(place, h("h2", {}, "Tokens"),
      items.length ? paged(turned, PAGE, "Tokens", ["For", "Of", "May", `Made (${time.zone()})`, "Good until", "Last used", done()], items, row) : h("p", { class: "dim" }, "None."),
      button("New token…", make, { class: "do" }));
  });

  function row(one) {
    const mine = here.operates || one.caller === here.caller, name = one.name || "a session";
    return [name, one.caller, rights(one), at(one.created), at(one.expires), at(one.used),
      mine ? button("Revoke", () => world.act("The token is none any more.", () => post(`/tokens/${encodeURIComponent(one.id)}/revoke`)), { class: "danger", "aria-label": `Revoke ${name} of ${one.caller}` }) : ""];
  }

  function make() {
    const name = h("input", { name: "name", required: true, maxlength: 256, autocomplete: "off" }), caller = h("input", { name: "caller", maxlength: 256, autocomplete: "off", placeholder: here.caller });
    const length = h("input", { name: "length", value: "90d" }), may = rightsFields(world);
    world.form("New token", "Make", "The token is made.", () => post("/tokens", { name: name.value, caller: caller.value, length: length.value.replaceAll(" ", "") || null, ...may.read() }),
      field("For", name, "What the token is for."), here.operates && field("Of", caller, "Whose it is. Empty: yours."), field("Good for", length, "Such as 12h or 90d."), may.place);
  }

  return { place, load };
}
