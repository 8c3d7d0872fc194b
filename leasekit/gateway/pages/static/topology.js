// Topologies: sites and the bandwidth between them, as two tables and a drawing of both; what would be planned, and what is leased.

import { did, shows } from "./acts.js";
import { Problem, gently, get, listen, path, post } from "./api.js";
import { button, chip, choice, field, fill, h, paged, table } from "./dom.js";
import { asList, myProjects, noProject, nothingOffered, ofList, onlyLooks, page, setView, view } from "./frame.js";
import { Trying, lengthInput } from "./lease-actions.js";
import * as time from "./time.js";

const WIDTH = 640, HEIGHT = 320, BOX = [132, 48], PAGE = 50, turned = {};
const SITES_MAX = 16, LINKS_MAX = 32;
const SOON = 10 * time.MINUTE, OVER = ["closed", "failed"];
const KINDS = { committed: "granted", planned: "granted", failed: "refused" };
const done = () => h("span", { class: "hidden" }, "Do");

/** Sites as boxes on a ring, links as lines between them: whole where they are planned, else dashed. */
function drawing({ sites, links }, parts) {
  const grown = sites.length > 8 ? 2 : 1, [width, height] = [WIDTH * grown, HEIGHT * grown];
  const at = (number) => {
    const angle = (2 * Math.PI * number) / sites.length - Math.PI / 2;
    const away = sites.length === 1 ? 0 : grown;
    return [width / 2 + away * 240 * Math.cos(angle), height / 2 + away * 120 * Math.sin(angle)];
  };
  const places = new Map(sites.map((one, number) => [one.id, at(number)]));
  const where = (id) => parts.find((part) => part.member === id)?.site ?? "";
  const text = (x, y, words, kind) => h("svg:text", { x, y, "text-anchor": "middle", class: kind }, words);
  const lines = links.filter((one) => places.has(one.from) && places.has(one.to)).map((one) => {
    const [[x1, y1], [x2, y2]] = [places.get(one.from), places.get(one.to)], planned = parts.some((part) => part.member === one.id);
    return [h("svg:line", { x1, y1, x2, y2, class: planned ? "planned" : "" }), text((x1 + x2) / 2, (y1 + y2) / 2 - 6, `${one.bw} Mbit/s`, "on-line")];
  });
  const boxes = sites.map((one) => {
    const [x, y] = places.get(one.id);
    return [h("svg:rect", { x: x - BOX[0] / 2, y: y - BOX[1] / 2, width: BOX[0], height: BOX[1], rx: 6 }), text(x, y - 4, one.id.slice(0, 18), "name"),
      text(x, y + 14, `${one.units} × ${one.type}${where(one.id) && ` at ${where(one.id)}`}`.slice(0, 22))];
  });
  const words = `${sites.length} sites, ${links.length} links between them; the tables say the same.`;
  return h("div", { class: "scrolls", tabindex: 0, role: "region", "aria-label": "Drawing" },
    h("svg", { class: "topology", width, height, role: "img", "aria-label": words }, lines, boxes));
}

const rowsOf = (word, names) => ofList(word).map((row) => Object.fromEntries(ofList(row).map((value, number) => [names[number], value])));
const wordOf = (rows, names) => asList(rows.filter((row) => names.every((name) => row[name])).map((row) => asList(names.map((name) => row[name]))));
const SITE = ["id", "type", "units"], LINK = ["from", "to", "bw"];

await page(async (place) => {
  const [{ projects, uses }, { items: offered }] = await Promise.all([myProjects(), get("/types")]);
  const types = offered.filter((one) => !one.classes.some(({ properties }) => "link.a" in properties)); // links are planned
  if (!projects.length || !types.length) {
    fill(place, projects.length ? nothingOffered() : noProject());
    return;
  }
  const shown = view(), project = projects.includes(shown.project) ? shown.project : projects.find(uses) ?? projects[0], may = uses(project);
  const sites = rowsOf(shown.sites, SITE), links = rowsOf(shown.links, LINK);
  if (!sites.length) sites.push({ id: "a", type: types[0].type, units: "1" });
  const length = lengthInput(shown.length);
  const start = h("input", { name: "start", type: "datetime-local", step: 1, value: shown.start ?? "" });
  const answer = h("div", { class: "answer", role: "status" }), trying = new Trying(answer, told);
  const siteTable = h("div", {}), linkTable = h("div", {}), picture = h("div", {}), list = h("section", {});
  const send = h("button", { class: "do", type: "submit" }, "Request");
  const ofProject = projects.length > 1 && field("Project", choice(projects, project, (value) => { setView({ project: value }); location.reload(); }));
  const form = h("form", { class: "request", on: { input: changed, submit } }, ofProject,
    siteTable, linkTable, h("div", { class: "fields" }, field("For how long", length, "Such as 90m, 2h or 1d 12h."), field(`From (${time.zone()})`, start, "Empty: as soon as it can.")),
    picture, answer, h("div", { class: "buttons" }, send));
  fill(place, may ? form : [ofProject, onlyLooks(project)], list);

  const named = () => links.map((one, number) => ({ ...one, id: `link${number}` }));

  function request() {
    const at = start.value ? time.fromInput(start.value) : Date.now();
    const window_ = start.value ? { est: time.iso(at), lst: time.iso(at) } : { est: time.iso(at), lst: time.iso(at + SOON) };
    return {
      sites: sites.map((one) => ({ ...one, units: Number(one.units) })), duration: length.value.replaceAll(" ", ""), ...window_,
      links: named().map((one) => ({ ...one, bw: Number(one.bw) })),
    };
  }

  /** An input for a value of a row. */
  function cell(row, name, label, attributes = {}) {
    const options = { type: types.map((one) => one.type), from: sites.map((one) => one.id), to: sites.map((one) => one.id) }[name];
    const took = (value) => { row[name] = value; };
    if (options) return choice(options, row[name], (value) => { took(value); changed(); }, { "aria-label": label });
    const changes = () => name === "id" && drawLinks(); // the table that one types in stays
    return h("input", { value: row[name], "aria-label": label, required: true, autocomplete: "off", ...attributes, on: { input: (event) => took(event.target.value), change: changes } });
  }

  /** A row more, or one less; the focus is where the row, or its button, was. */
  function edit(rows, draw, row, number) {
    if (row) rows.push(row);
    else rows.splice(number, 1);
    drawSites();
    drawLinks();
    changed();
    (row ? draw.querySelector("tr:last-child :is(input, select)") : draw.querySelector(":scope > button")).focus();
  }

  const remove = (rows, draw, number, label) => button("Remove", () => edit(rows, draw, null, number), { "aria-label": `Remove ${label}` });

  function drawSites() {
    const free = () => [..."abcdefghijklmnop"].find((id) => sites.every((one) => one.id !== id)) ?? "";
    fill(siteTable,
      table("Sites", ["Name", "Type", "Units", done()], sites.map((one, number) => [
        cell(one, "id", `Name of site ${number + 1}`, { maxlength: 20 }), cell(one, "type", `Type of site ${number + 1}`),
        cell(one, "units", `Units of site ${number + 1}`, { type: "number", min: 1 }), sites.length > 1 ? remove(sites, siteTable, number, `site ${number + 1}`) : ""]), { shown: true }),
      button("Add a site", () => edit(sites, siteTable, { id: free(), type: types[0].type, units: "1" }), { disabled: sites.length === SITES_MAX }));
  }

  function drawLinks() {
    const known = sites.map((one) => one.id);
    for (const one of links) for (const end of ["from", "to"]) if (!known.includes(one[end])) one[end] = known[0];
    fill(linkTable,
      links.length > 0 && table("Links", ["From", "To", "Mbit/s", done()], links.map((one, number) => [
        cell(one, "from", `Start of link ${number + 1}`), cell(one, "to", `End of link ${number + 1}`),
        cell(one, "bw", `Mbit/s of link ${number + 1}`, { type: "number", min: 0, step: "any" }), remove(links, linkTable, number, `link ${number + 1}`)]), { shown: true }),
      button("Add a link", () => edit(links, linkTable, { from: known[0], to: known[1], bw: "10" }), { disabled: sites.length < 2 || links.length === LINKS_MAX }));
  }

  function changed() {
    setView({ sites: wordOf(sites, SITE), links: wordOf(links, LINK), length: length.value === "1h" ? "" : length.value, start: start.value });
    fill(picture, drawing({ sites, links: named() }, []));
    trying.tryForm(form, () => ["/topologies/dry-run", { request: request() }, { project }], 400);
  }

  function told(found) {
    send.disabled = found instanceof Problem || found.status !== "planned";
    if (send.disabled) return;
    answer.dataset.kind = "granted";
    fill(answer, h("p", {}, chip("planned", "granted"), ` ${time.term(...found.term.map((at) => Date.parse(at)))}`),
      table("Plan", ["For", "Type", "Units", "Site"], found.parts.map((part) => [part.member, part.type, String(part.units), part.site])));
    fill(picture, drawing({ sites, links: named() }, found.parts));
  }

  async function submit(event) {
    event.preventDefault();
    if (await did("It is planned and leased, all or nothing.", () => post("/topologies", { request: request() }, { project }))) await load();
  }

  const load = shows(async (last) => {
    const items = await get("/topologies", { project });
    if (!last()) return;
    fill(list, items.length > 0 && [h("h2", {}, "Topologies"), paged(turned, PAGE, "Topologies", ["Id", "State", `Term (${time.zone()})`, "Why", done()], items, row)]);
  });

  function row(one) {
    const close = () => did("It closes.", () => post(`/topologies/${encodeURIComponent(one.topology)}/close`, {}, { project })).then(load);
    return [h("a", { class: "whole", href: path("leases", { project, find: one.slice }) }, one.topology), chip(one.state, KINDS[one.state] ?? one.state), one.term ? time.term(...one.term.map((at) => Date.parse(at))) : "",
      h("span", { class: "why" }, time.dated(one.reason)), OVER.includes(one.state) || !may ? "" : button("Close", close, { class: "danger", "aria-label": `Close ${one.topology}` })];
  }

  const soon = gently(load);
  if (may) {
    drawSites();
    drawLinks();
    changed();
  }
  await load();
  listen({ project }, soon, soon);
  window.addEventListener("zone", load);
});
