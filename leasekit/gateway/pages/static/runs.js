// The runs of a folder side by side: what was set for each, and what came of it.

import { get, here, path } from "./api.js";
import { empty, field, fill, h, table } from "./dom.js";
import { page, setView, view } from "./frame.js";

const SHOWN = 6, UNSET = "—";
const figure = (value) => (typeof value === "number" ? (Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)))) : typeof value === "object" && value ? JSON.stringify(value) : value ?? UNSET);
const called = (run) => run.run || "the run";

/** How far a figure is from that of the first run. */
function apart(value, first) {
  if (typeof value !== "number" || typeof first !== "number" || !first || value === first) return "";
  const share = (100 * (value - first)) / Math.abs(first);
  return ` ${share > 0 ? "+" : "−"}${figure(Math.abs(Number(share.toPrecision(2))))}%`;
}

await page(async (place) => {
  const told = await get("/runs"), { runs } = told;
  if (!runs.length) {
    fill(place, empty("This folder has no run that came to its end."));
    return;
  }
  const asked = (view().runs ?? "").split(",").filter(Boolean).map(Number);
  let chosen = asked.length ? asked.filter((at) => at < runs.length) : runs.slice(0, SHOWN).map((_, at) => at);
  const shownPlace = h("div", {}), find = h("input", { type: "search", value: view().find ?? "", placeholder: "unserved", on: { input: () => { setView({ find: find.value }); show(); } } });
  const differ = h("input", { type: "checkbox", checked: runs.length > 1 && view().all !== "yes", on: { change: () => { setView({ all: differ.checked ? "" : "yes" }); show(); } } });
  const boxes = runs.map((run, at) => h("label", { class: "check" }, h("input", { type: "checkbox", checked: chosen.includes(at), on: { change: () => choose(at) } }), called(run)));
  fill(place,
    h("p", {}, h("code", {}, told.file), told.synthetic && h("span", { class: "dim" }, " · generated load"), told.not_run.length > 0 && h("span", { class: "refused" }, ` · not run: ${told.not_run.join(", ")}`)),
    h("div", { class: "tools" }, field("Figure", find), runs.length > 1 && h("label", { class: "check" }, differ, "Only what differs")),
    runs.length > 1 && h("details", { open: runs.length <= 12 }, h("summary", {}, `Runs (${runs.length})`), boxes),
    shownPlace,
    told.pictures.length > 0 && h("section", {}, h("h2", {}, "Pictures"), h("div", { class: "pictures" }, told.pictures.map((name) => h("figure", {}, h("img", { src: `${here.base}/pictures/${encodeURIComponent(name)}`, alt: name, loading: "lazy" }), h("figcaption", {}, h("a", { href: `${here.base}/pictures/${encodeURIComponent(name.replace(/svg$/, "png"))}` }, name.replace(/\.svg$/, ""), " (PNG)")))))));
  show();

  function choose(at) {
    chosen = chosen.includes(at) ? chosen.filter((one) => one !== at) : [...chosen, at].sort((a, b) => a - b);
    setView({ runs: chosen.join(",") });
    show();
  }

  function show() {
    const columns = chosen.map((at) => runs[at]), words = find.value.toLowerCase();
    const names = [...new Set(columns.flatMap((run) => [...Object.keys(run.set), ...Object.keys(run.figures)]))];
    const rows = names.filter((name) => name.toLowerCase().includes(words)).map((name) => [name, ...columns.map((run) => run.set[name] ?? run.figures[name])])
      .filter(([, ...values]) => !differ.checked || columns.length < 2 || values.some((value) => figure(value) !== figure(values[0])));
    const head = (run) => h("span", { class: "number" }, run.calendar ? h("a", { href: path("run", { run: run.run }) }, called(run)) : called(run));
    fill(shownPlace, !columns.length ? empty("Choose a run.") : !rows.length ? empty("They do not differ in what you look for.")
      : table("Runs side by side", ["Figure", ...columns.map(head)], rows.map(([name, ...values]) => h("tr", {}, h("th", { scope: "row" }, name), values.map((value, at) => h("td", { class: "number" }, figure(value), at > 0 && h("span", { class: "dim" }, apart(value, values[0]))))))));
  }
});
