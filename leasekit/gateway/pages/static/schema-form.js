// Inputs that are made of the API's schema, and what stands in them as the API reads it.

import { choice, h } from "./dom.js";
import * as time from "./time.js";

/** A field's name in words. */
export const words = (name) => { const text = name.replaceAll("_", " "); return text[0].toUpperCase() + text.slice(1); };

/** The kind of a field of the schema: what is allowed but null. */
const kindOf = (schema) => schema.anyOf?.find((one) => one.type !== "null") ?? schema;

/** An input for a field; `value` is what stands in it at first: text, or whether it is ticked. */
export function inputOf(name, schema, value, required = false) {
  const kind = kindOf(schema);
  if (kind.enum) return choice(kind.enum, value || schema.default, null, { name });
  if (kind.type === "boolean") return h("input", { type: "checkbox", name, checked: Boolean(value) });
  if (kind.type === "integer") return h("input", { type: "number", name, min: kind.minimum, max: kind.maximum, value, required });
  if (kind.format === "date-time") return h("input", { type: "datetime-local", name, step: 1, value, required });
  if (kind.type === "object") return h("textarea", { name, rows: 2, value });
  return h("input", { name, maxlength: kind.maxLength, value, required, autocomplete: "off", spellcheck: "false" });
}

/** What stands in an input, as the API has it; undefined: nothing, or what holds anyhow. */
export function read(input, schema) {
  const kind = kindOf(schema), text = input.value.trim();
  if (kind.type === "boolean") return input.checked === Boolean(schema.default) ? undefined : input.checked;
  if (!text || text === schema.default) return undefined;
  if (kind.type === "integer") return Number(text);
  if (kind.type === "array") return text.split(",").map((one) => one.trim()).filter(Boolean);
  if (kind.format === "date-time") return time.iso(time.fromInput(text));
  if (kind.type === "object") return Object.fromEntries(text.split("\n").filter(Boolean).map((line) => [line.split("=")[0].trim(), line.split("=").slice(1).join("=").trim()]));
  return /length of time/.test(kind.description ?? "") ? text.replaceAll(" ", "") : text;
}
