// Admin: users, tokens, policies of projects, rules by which people are told, and what was sent; each sees what is theirs to see.

import { deliveries, policies, rules } from "./admin-projects.js";
import { announcements, tokens, users } from "./admin-users.js";
import { Dialog, did } from "./acts.js";
import { Problem, gently, get, listen } from "./api.js";
import { button, choice, field, fill, h } from "./dom.js";
import { myProjects, note, page, setView, view } from "./frame.js";

await page(async (place) => {
  const [{ projects, uses }, document_] = await Promise.all([myProjects(), get("/openapi.json")]);
  const dialog = new Dialog();
  const world = {
    projects, uses, schemas: document_.components.schemas,
    project: projects.includes(view().project) ? view().project : projects[0],
    open: (form) => dialog.open(form), close: () => dialog.close(),
    /** A form in the dialog, with what does it: what that gave, or null. `words` say that it was done. */
    form: (title, verb, words, doing, ...fields) => dialog.open(h("form", { on: { submit: (event) => { event.preventDefault(); world.act(words, doing); } } },
      h("h2", {}, title), fields, h("div", { class: "buttons" }, h("button", { class: "do", type: "submit" }, verb), button("Cancel", world.close)))),
    act: async (words, doing) => {
      const made = await did(words, doing);
      if (!made) {
        await load(); // maybe it is not as it was seen
        return;
      }
      dialog.close();
      if (made.secret) once(made.secret);
      await load();
    },
  };
  const parts = [announcements(world), users(world), tokens(world), ...(projects.length ? [policies(world), rules(world), deliveries(world)] : [])];
  fill(place,
    projects.length > 1 && h("div", { class: "tools" }, field("Rules and deliveries of", choice(projects, world.project, (value) => { world.project = value; setView({ project: value }); load(); }))),
    parts.map((one) => one.place), dialog.place);

  function once(secret) {
    dialog.open(h("div", {}, h("h2", {}, "The secret"), h("p", {}, "It is shown now, and never again."), h("pre", { tabindex: 0, "aria-label": "The secret" }, secret),
      h("div", { class: "buttons" }, button("I have it", world.close, { class: "do" }))));
  }

  /** Each part for itself: one that can't be shown leaves the others. */
  async function load() {
    await Promise.all(parts.map(async (one) => {
      try {
        await one.load();
      } catch (problem) {
        if (!(problem instanceof Problem)) throw problem;
        note(problem.message, { refused: true });
      }
    }));
  }

  const soon = gently(load);
  await load();
  listen({}, () => {}, soon);
  for (const hint of ["announcements", "deliveries"]) window.addEventListener(hint, soon);
  window.addEventListener("zone", load);
});
