// Claims: who gave what to whom, from a site's own down to the leases of guests; what is given more than once; evidence.

import { get } from "./api.js";
import { chip, choice, empty, field, fill, h, table } from "./dom.js";
import { page, setView, view } from "./frame.js";
import * as time from "./time.js";

const FAR = Date.parse("2200-01-01");
const CHILDREN_MAX = 200;
const term = (one) => (Date.parse(one.term[1]) > FAR ? `from ${time.moment(Date.parse(one.term[0]))} on` : time.term(...one.term.map((at) => Date.parse(at))));
const counts = (one) => one.honoured && !["void", "returned"].includes(one.state);

/** The most units that claims have at one instant. */
function peak(claims) {
  const changes = claims.filter(counts).flatMap((one) => [[Date.parse(one.term[0]), one.units], [Date.parse(one.term[1]), -one.units]]);
  let level = 0, most = 0;
  for (const [, by] of changes.sort((a, b) => a[0] - b[0] || a[1] - b[1])) most = Math.max(most, (level += by));
  return most;
}

await page(async (place) => {
  const shown = view(), { items: actors } = await get("/actors");
  const sites = actors.filter((one) => one.role === "authority").map((one) => one.name);
  if (!sites.length) {
    fill(place, empty("This deployment has no site of its own."));
    return;
  }
  const site = sites.includes(shown.site) ? shown.site : sites[0], all = shown.all === "yes";
  const [claims, evidence] = await Promise.all([get("/claims", { site }), get("/evidence", { site })]);
  const again = (values) => { setView(values); location.reload(); };
  const over = h("input", { type: "checkbox", checked: all, on: { change: () => again({ all: over.checked ? "yes" : "" }) } });
  const known = new Set(claims.map((one) => one.claim)), now = Date.now(), children = new Map();
  for (const one of claims) {
    const parent = known.has(one.parent) ? one.parent : "";
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(one);
  }
  for (const list of children.values()) list.sort((a, b) => Date.parse(a.term[0]) - Date.parse(b.term[0]) || b.units - a.units);

  const node = (one) => {
    const below = children.get(one.claim) ?? [], most = peak(below), seen = below.filter((each) => all || Date.parse(each.term[1]) > now);
    const words = [h("strong", {}, one.holder_name || one.holder_fingerprint), ` ${one.units} × ${one.type} `, h("span", { class: "dim" }, `${term(one)}, by ${one.issuer_name || one.issuer_fingerprint}`), " ", chip(one.state),
      one.lease && h("code", {}, ` ${one.lease}`), most > 0 && h("span", { class: "given" }, h("meter", { min: 0, max: Math.max(one.units, most), value: most, "aria-label": `Given of ${one.units}` }), ` ${most} of ${one.units} given at most`),
      most > one.units && chip("oversubscribed", "failed")];
    if (!seen.length) return h("li", {}, h("div", { class: "claim" }, words));
    return h("li", {}, h("details", { open: seen.length <= 20 }, h("summary", {}, words), h("ul", { class: "claims" }, seen.slice(0, CHILDREN_MAX).map(node), seen.length > CHILDREN_MAX && h("li", { class: "dim" }, `and ${seen.length - CHILDREN_MAX} more`))));
  };

  const roots = children.get("") ?? [];
  fill(place,
    h("div", { class: "tools" }, sites.length > 1 && field("Site", choice(sites, site, (value) => again({ site: value }))), h("label", { class: "check" }, over, "Also what is over")),
    roots.length ? h("ul", { class: "claims" }, roots.map(node)) : empty("This site has given nothing yet."),
    h("section", {}, h("h2", {}, "Evidence"),
      evidence.length ? table("Evidence", [`When (${time.zone()})`, "Kind", "Guilty", "What was done"], evidence.map((one) => [time.moment(Date.parse(one.at)), one.kind, one.guilty_name || h("code", {}, one.guilty_fingerprint), time.dated(one.words)])) : h("p", { class: "dim" }, "None: nobody was found to have given more than it had."),
      h("p", { class: "dim" }, "Anybody can check evidence offline: ", h("code", {}, "leasekit evidence show ID --out FILE"), ", then ", h("code", {}, "leasekit evidence verify FILE"), ".")));
});
