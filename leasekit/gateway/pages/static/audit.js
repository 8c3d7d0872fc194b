// Audit: who did what when, by which way; of a project, or of any actor for those who may see all.

import { get, here, path } from "./api.js";
import { button, choice, empty, field, fill, h, table } from "./dom.js";
import { page, setView, view } from "./frame.js";
import * as time from "./time.js";

const PAGE = 100;

await page(async (place) => {
  const shown = view(), { items: projects } = await get("/projects");
  const actors = here.seesAll ? (await get("/actors")).items.filter((one) => !projects.includes(one.name)).map((one) => one.name) : [];
  const options = [...projects, ...actors];
  if (!options.length) {
    fill(place, empty("You have no project. An operator can give you a role in one."));
    return;
  }
  const of = options.includes(shown.of) ? shown.of : options[0];
  const query = projects.includes(of) ? { project: of } : { actor: of };
  const told = await get("/audit", { ...query, limit: PAGE, cursor: shown.cursor });
  const row = (one) => [h("time", { datetime: one.at }, time.moment(Date.parse(one.at), true)), one.values.who ?? "", one.values.what ?? "", one.event, one.lease && (projects.includes(of) ? h("a", { class: "whole", href: path(`leases/${encodeURIComponent(one.lease)}`, { project: of }) }, one.lease) : h("code", {}, one.lease))];
  fill(place,
    h("div", { class: "tools" }, options.length > 1 && field("Of", choice(options, of, (value) => { setView({ of: value, cursor: "" }); location.reload(); }))),
    told.items.length ? table("Commands", [`When (${time.zone()})`, "Who", "Way", "What", "About"], told.items.map(row)) : empty("Nobody has commanded anything."),
    h("div", { class: "buttons" }, shown.cursor && button("First page", () => { setView({ cursor: "" }); location.reload(); }), told.next && button("Next page", () => { setView({ cursor: told.next }, true); location.reload(); })));
  window.addEventListener("popstate", () => location.reload());
});
