// Templates of requests: one's own, and those that all of a project see. One fills the form by its address.

import { Dialog, did } from "./acts.js";
import { get, here, path, post } from "./api.js";
import { button, choice, field, fill, h } from "./dom.js";

const OF_TIME = ["start", "end", "deferrable_until"];

/** A value of a request as the address has it. */
function written(value) {
  if (value === true) return "yes";
  return typeof value === "object" && value !== null ? Object.entries(value).map(([key, each]) => `${key}=${each}`).join("\n") : value;
}

/** The choice among the templates of a project, and the way to one more of what `body` says, and `days`, if it recurs. */
export class Templates {
  place = h("span", { class: "buttons" });
  #dialog = new Dialog();
  dialog = this.#dialog.place;

  constructor(project, body, days, named) {
    Object.assign(this, { project, body, days, named });
  }

  async load() {
    const { items } = await get("/templates", { project: this.project });
    const of = (one) => (one.shared ? `${one.name} (${one.caller === here.caller ? "shared" : one.caller})` : one.name);
    fill(this.place, button("Save as template…", () => this.#open(items)),
      items.length > 0 && choice([["", "Templates"], ...items.map((one) => [one.id, of(one)])], "", (id) => this.#use(items.find((one) => one.id === id)), { "aria-label": "Templates" }));
  }

  #use(template) {
    if (!template) return;
    const words = Object.fromEntries(Object.entries({ ...template.request, ...(template.days && { zone: "UTC", ...template.days }) }).map(([name, value]) => [name, written(value)]));
    location.href = path("request", { project: this.project, ...words });
  }

  #open(items) {
    const name = h("input", { name: "template", required: true, maxlength: 128, autocomplete: "off", value: this.named("name") || this.named("type") });
    const shared = h("input", { type: "checkbox", name: "shared" });
    const theirs = items.filter((one) => one.caller === here.caller);
    const save = async (event) => {
      event.preventDefault();
      const request = Object.fromEntries(Object.entries(this.body()).filter(([key]) => !OF_TIME.includes(key)));
      if (await did(`Saved as ${name.value}.`, () => post("/templates", { name: name.value, shared: shared.checked, request, days: this.days() }, { project: this.project }))) await this.#done();
    };
    const remove = (one) => button("Remove", async () => {
      if (await did(`There is no template ${one.name} any more.`, () => post(`/templates/${encodeURIComponent(one.id)}/remove`))) await this.#done();
    }, { "aria-label": `Remove ${one.name}`, class: "danger" });
    this.#dialog.open(h("form", { on: { submit: save } },
      h("h2", {}, "Save as template"), field("Name", name, "One of yours with this name is replaced. Dates are left out; the days and hours of Recur are kept."),
      h("label", { class: "check" }, shared, "All of the project see it"),
      theirs.length > 0 && h("details", {}, h("summary", {}, "Yours"), h("ul", {}, theirs.map((one) => h("li", {}, one.name, " ", remove(one))))),
      h("div", { class: "buttons" }, h("button", { class: "do", type: "submit" }, "Save"), button("Cancel", () => this.#dialog.close()))));
  }

  async #done() {
    this.#dialog.close();
    await this.load();
    this.place.querySelector("button").focus();
  }
}
