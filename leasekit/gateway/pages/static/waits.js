// For what one waits: what would have to fit, between when, and the window that was found.

import { did, shows } from "./acts.js";
import { gently, get, listen, path, post } from "./api.js";
import { button, chip, choice, empty, field, fill, h, paged } from "./dom.js";
import { myProjects, noProject, page, setView, view } from "./frame.js";
import * as time from "./time.js";

const PAGE = 50, turned = {}, KINDS = { waiting: "waits", free: "granted", over: "refused" };

await page(async (place) => {
  const { projects, uses } = await myProjects();
  if (!projects.length) {
    fill(place, noProject());
    return;
  }
  const list = h("div", {});
  const project = () => (projects.includes(view().project) ? view().project : projects[0]);
  fill(place, projects.length > 1 && h("div", { class: "tools" }, field("Project", choice(projects, project(), (value) => { setView({ project: value }); load(); }))), list);

  const load = shows(async (last) => {
    const { items } = await get("/waits", { project: project() });
    if (!last()) return;
    fill(list, items.length
      ? paged(turned, PAGE, "Waiting list", ["What", "For", `Between (${time.zone()})`, "Who", "State", "It would fit at", h("span", { class: "hidden" }, "Do")], items.reverse(), row)
      : empty("Nobody waits. Where something does not fit, the forms offer to tell you when it is free.", uses(project()) && h("a", { class: "button", href: path("request", { project: project() }) }, "Request")),
    h("p", { class: "dim" }, "You are told on this page, and by your rules for what is free: ", h("a", { href: path("admin", { project: project() }) }, "Admin"), "."));
  });

  function row(one) {
    const { asked } = one, what = `${asked.units ?? 1} × ${asked.type}`;
    return [[what, asked.site && ` at ${asked.site}`, [asked.filter, needed(asked)].filter(Boolean).map((words) => h("div", { class: "dim why" }, words))], time.span(time.toSpan(asked.length)),
      time.term(Date.parse(asked.start), Date.parse(asked.end)), one.caller, chip(one.state, KINDS[one.state]), one.slot ? slotLink(one) : "",
      button("Remove", () => remove(one), { "aria-label": `Remove ${what} of ${one.caller}` })];
  }

  async function remove(one) {
    if (await did("You do not wait for it any more.", () => post(`/waits/${encodeURIComponent(one.id)}/remove`))) await load();
  }

  const soon = gently(load);
  await load();
  listen({}, () => {}, soon);
  window.addEventListener("waits", soon);
  window.addEventListener("zone", load);
});

/** What each machine is to have of a host. */
function needed({ needs }) {
  return Object.entries(needs ?? {}).map(([name, much]) => `${name}=${much}`).join("\n");
}

/** The way to a request for the window that was found. */
function slotLink({ asked, project, slot }) {
  const { type, units, length, filter } = asked, start = Date.parse(slot.start);
  const query = { project, type, units, length, filter, needs: needed(asked), site: slot.site, start: start > Date.now() ? time.toExactInput(start) : "" };
  return h("a", { href: path("request", query) }, `Request ${start > Date.now() ? time.moment(start) : "now"}, ${slot.site}`);
}
