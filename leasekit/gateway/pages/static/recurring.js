// A request that recurs: on which days, at which hours, and what became, or would become, of each of them.

import { path } from "./api.js";
import { chip, choice, field, fill, h, paged } from "./dom.js";
import * as time from "./time.js";

const DAYS = [["mon", "Mon"], ["tue", "Tue"], ["wed", "Wed"], ["thu", "Thu"], ["fri", "Fri"], ["sat", "Sat"], ["sun", "Sun"]];
const KINDS = { possible: "granted" }, ORDER = ["refused", "waits", "possible", "granted"], PAGE = 20;

/** What a request that recurs can't say: its days say when, and they are a group of their own. */
export const NOT_OF_SERIES = ["length", "end", "deferrable_until", "after", "join_after", "proceed", "group", "group_size", "keepalive"];

/** The days that words such as `mon-fri`, `mon,thu` or `day` name. */
function weekdays(text) {
  const names = DAYS.map(([name]) => name);
  return text.toLowerCase().split(",").flatMap((part) => {
    const [first, last = first] = part.trim().split("-").map((one) => names.indexOf(one.trim().slice(0, 3)));
    if (part.trim() === "day") return names;
    return first < 0 || last < 0 ? [] : names.filter((_, number) => (number - first + 7) % 7 <= (last - first + 7) % 7);
  });
}

/** A time of day, such as `9:00`, as an input has it. */
const clock = (text) => text?.padStart(5, "0");

/** The days and hours of a request; `shown` are the words of the address. */
export class Recurring {
  constructor(shown) {
    const here_ = Intl.DateTimeFormat().resolvedOptions().timeZone, chosen = weekdays(shown.every ?? "");
    this.boxes = DAYS.map(([value]) => h("input", { type: "checkbox", value, checked: chosen.includes(value) }));
    const input = (name, type, value) => h("input", { name, type, value });
    this.inputs = {
      begin: input("begin", "time", clock(shown.begin) ?? "09:00"), finish: input("finish", "time", clock(shown.finish) ?? "17:00"), until: input("until", "date", shown.until ?? ""),
      zone: choice([...new Set(["UTC", here_, shown.zone].filter(Boolean))], shown.zone ?? (time.isLocal() ? here_ : "UTC"), null, { name: "zone" }),
      each: h("input", { type: "checkbox", name: "each", checked: shown.each === "yes" }),
    };
    this.place = h("details", { open: this.on }, h("summary", {}, "Recur"),
      h("fieldset", {}, h("legend", {}, "On"), this.boxes.map((box, number) => h("label", { class: "check" }, box, DAYS[number][1]))),
      h("div", { class: "fields" }, field("At", this.inputs.begin), field("To", this.inputs.finish), field("Last day", this.inputs.until),
        field("Zone of the hours", this.inputs.zone), field("Those that can be had", this.inputs.each, "Else all of them, or none.")));
  }

  /** Whether a day is chosen. */
  get on() {
    return this.boxes.some((box) => box.checked);
  }

  /** What the address says of it. */
  values() {
    const { begin, finish, until, zone, each } = this.inputs;
    for (const input of [begin, finish, until]) input.required = this.on;
    return this.on
      ? { every: this.#days(), begin: begin.value, finish: finish.value, until: until.value, zone: zone.value, each: each.checked && "yes" }
      : { every: "", begin: "", finish: "", until: "", zone: "", each: "" };
  }

  /** The body of `POST /leases/series`. */
  body(request) {
    return { request, ...this.hours(), until: this.inputs.until.value };
  }

  /** Its days and hours, for any time. */
  hours() {
    const { begin, finish, zone, each } = this.inputs;
    return { every: this.#days(), begin: begin.value, finish: finish.value, zone: zone.value, each: each.checked };
  }

  #days() {
    return this.boxes.filter((box) => box.checked).map((box) => box.value).join(",");
  }
}

/** What became of a series, or would, in a few words. */
export function outcome({ days, kept }, tried = false) {
  const refused = days.filter((day) => day.status === "refused").length;
  if (!refused) return `All ${days.length} days ${tried ? "can be had" : "are granted"}.`;
  return `${refused} of ${days.length} days can't be had${tried || kept ? "" : ": none was kept"}.`;
}

/** What became of each day of a series, or would, in an element. */
export function showDays(place, answer, project, tried) {
  place.dataset.kind = answer.days.some((day) => day.status === "refused") ? "refused" : "granted";
  fill(place, h("p", {}, outcome(answer, tried)), answer.approval && h("p", {}, chip("to be approved", "waits"), ` ${answer.approval}.`), daysOf(answer, project));
}

/** The days of a series, those that can't be had first, each with what became of it, and those that were left out. */
export function daysOf({ days, skipped, past = [] }, project) {
  const more = [
    ["Site", (day) => day.site],
    ["Why", (day) => ["refused", "waits"].includes(day.status) && h("span", { class: "why" }, time.dated(day.reason ?? ""))],
    ["Lease", (day) => day.status === "granted" && h("a", { class: "whole", href: path(`leases/${encodeURIComponent(day.lease)}`, { project }) }, day.name || day.lease)],
  ].filter(([, cell]) => days.some(cell));
  return [
    skipped.length > 0 && h("p", {}, `Left out, as clocks skip these hours: ${skipped.join(", ")}.`),
    past.length > 0 && h("p", {}, `Left out, as they had begun before it was approved: ${past.join(", ")}.`),
    paged({}, PAGE, "Days", [`When (${time.zone()})`, "Answer", ...more.map(([word]) => word)], ORDER.flatMap((status) => days.filter((day) => day.status === status)), (day) => [
      time.term(Date.parse(day.start), Date.parse(day.end)), chip(day.status, KINDS[day.status] ?? day.status), ...more.map(([, cell]) => cell(day) || "")])];
}
