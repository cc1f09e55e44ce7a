"use strict";
// The page's data, decoded. Texts of a sweep are only ever shown as text nodes.

const DATA = JSON.parse(document.getElementById("data").textContent);

function unpack(packed) {
  const kinds = { f8: Float64Array, f4: Float32Array, i4: Int32Array };
  const text = atob(packed.base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  return new kinds[packed.kind](bytes.buffer);
}

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

// What an object has of its own: names of a sweep or an address may be those that every object inherits.
function own(object, name) {
  return Object.hasOwn(object, name) ? object[name] : undefined;
}

const byId = (id) => document.getElementById(id);

function show(id, text) {
  byId(id).textContent = text;
}

// Five digits, as the terminal shows them.
function format(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 10000 || Number.isInteger(value)) return value.toFixed(0);
  return value.toFixed(Math.max(0, 4 - String(Math.trunc(size)).length));
}

// A signed difference, to three digits.
function percent(value) {
  const text = String(Math.abs(value) < 5e-4 ? 0 : Number(value.toPrecision(3)));
  return `${value > 0 && text !== "0" ? "+" : ""}${text.replace("-", "−")} %`;
}

// Of an axis: numbers short, the rest as it is.
function label(value) {
  if (value === null || value === undefined) return "none";
  if (typeof value === "number") return String(Number(value.toPrecision(6)));
  return String(value);
}

function shortened(text, limit) {
  return text.length > limit ? `${text.slice(0, limit - 1)}…` : text;
}

// Texts cut so that they still differ: by their beginnings, else from where they differ on, else by number.
function toldApart(texts, limit) {
  const distinct = new Set(texts).size;
  const apart = (some) => new Set(some).size === distinct;
  const heads = texts.map((text) => shortened(text, limit));
  if (apart(heads)) return heads;
  let at = 0;
  while (texts.every((text) => at < text.length && text[at] === texts[0][at])) at += 1;
  while (at && /[\p{L}\p{N}]/u.test(texts[0][at - 1])) at -= 1; // a number or a name is not cut in two
  const tails = texts.map((text) => shortened(`…${text.slice(at)}`, limit));
  if (apart(tails)) return tails;
  const numbers = [...new Set(texts)];
  return texts.map((text) => shortened(`${numbers.indexOf(text) + 1}: ${text}`, limit));
}

// plotly reads a little markup in its texts; what a sweep says must not be taken for any.
function plain(text, limit = 60) {
  return shortened(text, limit).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function titleOf(metric) {
  return own(DATA.titles, metric) ?? metric;
}

// New controls in the place of old ones; the keyboard stays where it was.
function replaceControls(id, ...children) {
  const place = byId(id);
  const reachable = () => [...place.querySelectorAll("select, input, button")];
  const at = reachable().indexOf(document.activeElement);
  place.replaceChildren(...children.flat().filter((child) => child));
  if (at >= 0) reachable()[at]?.focus();
}
