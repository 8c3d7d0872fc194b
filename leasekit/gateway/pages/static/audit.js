// Audit: who did what when, by which way, newest first; of a project, or of any actor for those who may see all.

import { shows } from "./acts.js";
import { actors, gently, get, here, listen, path } from "./api.js";
import { button, choice, empty, field, fill, h, table } from "./dom.js";
import { noProject, page, setView, view } from "./frame.js";
import * as time from "./time.js";

const PAGE = 100;

await page(async (place) => {
  const { items: projects } = await get("/projects");
  const others = here.seesAll ? (await actors()).filter((one) => one.role !== "gateway" && !projects.includes(one.name)).map((one) => one.name) : [];
  const options = [...projects, ...others];
  if (!options.length) {
    fill(place, noProject());
    return;
  }
  const list = h("div", {}), of = () => (options.includes(view().of) ? view().of : options[0]);
  const turn = (values, push = false) => { setView(values, push); load(true); };
  const chosen = choice(options, of(), (value) => turn({ of: value, cursor: "" }));
  fill(place, options.length > 1 && h("div", { class: "tools" }, field("Of", chosen)), list);

  const load = shows(async (last) => {
    const { cursor } = view(), project = projects.includes(of()) ? of() : undefined;
    const told = await get("/audit", { ...(project ? { project } : { actor: of() }), newest: true, limit: PAGE, cursor });
    if (!last()) return;
    const about = (one) => (project ? h("a", { class: "whole", href: path(`leases/${encodeURIComponent(one.lease)}`, { project }) }, one.lease) : h("code", {}, one.lease));
    const row = (one) => [h("time", { datetime: one.at }, time.moment(Date.parse(one.at), true)), one.values.who ?? "", one.values.what ?? "", one.event, one.lease && about(one)];
    fill(list,
      told.items.length ? table("Commands", [`When (${time.zone()})`, "Who", "Way", "What", "About"], told.items.map(row)) : empty("Nobody has commanded anything."),
      h("div", { class: "buttons" }, cursor && button("Newest", () => turn({ cursor: "" }, true)), told.next && button("Older", () => turn({ cursor: told.next }, true))));
  }, list);
  const soon = gently(load);
  await load();
  listen(here.seesAll ? { all: true } : {}, (event) => { if (event?.actor === of() && event.code === "commanded") soon(); }, soon);
  window.addEventListener("popstate", () => { chosen.value = of(); load(true); });
  window.addEventListener("zone", () => load());
});
