// What the reader chose, kept in the address after the #. A part that is as at the start is left out.

const state = {};
let defaults = {};
let ownHash = null;

function startState(given) {
  defaults = given;
  readHash();
}

function readHash() {
  for (const key of Object.keys(state)) delete state[key];
  Object.assign(state, structuredClone(defaults));
  let given;
  try {
    given = new URLSearchParams(location.hash.slice(1));
  } catch {
    return;
  }
  for (const [key, text] of given) {
    if (!Object.hasOwn(defaults, key)) continue;
    try {
      const value = JSON.parse(text);
      if (sameShape(value, defaults[key])) state[key] = value;
    } catch {
      // an address that somebody cut: the rest of it still counts
    }
  }
}

function sameShape(value, like) {
  if (like === null) return value === null || typeof value === "string" || typeof value === "number";
  if (Array.isArray(like)) return Array.isArray(value);
  return typeof value === typeof like && value !== null && !Array.isArray(value);
}

function writeHash() {
  const kept = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    const text = JSON.stringify(value);
    if (text !== JSON.stringify(defaults[key])) kept.set(key, text);
  }
  ownHash = kept.toString();
  try {
    history.replaceState(null, "", ownHash ? `#${ownHash}` : location.href.split("#")[0]);
  } catch {
    // inside another page (MLflow shows artifacts in a frame) there may be no address to change
  }
}
