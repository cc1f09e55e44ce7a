// Puts the page together.

const FIRST_NOTES = 6;

function startValues() {
  const byValues = [...LEADING].sort((a, b) => b.values.length - a.values.length);
  const withTables = DATA.ranked.map((group) => group[0]).filter((row) => DATA.details[String(row)]);
  const across = byValues.find((axis) => axis.numeric) || byValues[0];
  const truthHas = Object.values(DATA.truths).some((truth) => truthValue(truth, "ttft_ms/mean") !== undefined);
  const firstMetric = METRICS.has(DATA.measure) ? DATA.measure : [...METRICS.keys()][0] ?? "";
  return {
    theme: "", only: {}, range: {}, status: "", most: null, find: "",
    sort: "rank", direction: 1, rows: PAGES[0], columns: DATA.columns,
    chosen: withTables.slice(0, 3),
    heatX: byValues[0]?.name || "", heatY: byValues[1]?.name || "", heatValue: firstMetric, held: {},
    curveX: across?.name || "", curveY: truthHas && METRICS.has("ttft_ms/mean") ? "ttft_ms/mean" : firstMetric,
    curveBy: byValues.find((axis) => axis !== across && axis.values.length <= 6)?.name || "",
    errors: "ttft_ms", parallel: firstMetric,
  };
}

// An address of another report, or one that somebody wrote, may name what this one does not have.
function mendState(start) {
  for (const key of ["heatX", "curveX"]) if (!axisNamed(state[key]) && !METRICS.has(state[key])) state[key] = start[key];
  for (const key of ["heatY", "curveBy"]) if (state[key] && !axisNamed(state[key])) state[key] = start[key];
  for (const key of ["heatValue", "curveY", "parallel"]) if (!METRICS.has(state[key])) state[key] = start[key];
  if (!axisNamed(state.heatX)) state.heatX = start.heatX;
  if (!LATENCIES.some(([key]) => key === state.errors)) state.errors = start.errors;
  state.chosen = [...new Set(state.chosen)].filter((row) => isIndex(row, COUNT)).slice(0, MOST_CHOSEN);
  state.columns = [...new Set(state.columns)].filter((name) => METRICS.has(name));
  state.only = ofAxes(state.only, (codes, axis) => Array.isArray(codes) && codes.every((code) => isIndex(code, axis.values.length)));
  state.range = ofAxes(state.range, (ends) => Array.isArray(ends) && ends.length === 2 && ends.every(isBound));
  state.held = ofAxes(state.held, (code, axis) => isIndex(code, axis.values.length));
  if (!isBound(state.most)) state.most = null;
  if (!Number.isInteger(state.rows) || state.rows < 1) state.rows = start.rows;
  if (state.direction !== -1) state.direction = 1;
  if (!columns().some((column) => column.key === state.sort)) state.sort = "rank";
}

const isIndex = (value, size) => Number.isInteger(value) && value >= 0 && value < size;
const isBound = (value) => value === null || typeof value === "number";

// What is said of the axes there are; no name is found in it that was not put there.
function ofAxes(given, fits) {
  const kept = Object.create(null);
  for (const axis of VARIED) {
    const value = own(given, axis.name);
    if (value !== undefined && fits(value, axis)) kept[axis.name] = value;
  }
  return kept;
}

function drawHead() {
  document.title = `${DATA.name} - servesweep`;
  show("name", DATA.name);
  show("verdict", DATA.verdict);
  const { counts } = DATA;
  const said = [
    `${counts.points} points: ${counts.finished} finished, ${counts.equal} equal to another, ${counts.failed} failed` +
      (counts.not_run ? `, ${counts.not_run} not run` : ""),
    DATA.model ? `model ${DATA.model}` : null,
    truthsTold(),
    DATA.servesweep ? `servesweep ${DATA.servesweep}` : null,
    DATA.commit ? `commit ${DATA.commit.slice(0, 12)}${DATA.commit.endsWith("-dirty") ? " with changes" : ""}` : null,
  ];
  show("facts", said.filter((one) => one).join(" · "));
  show("points-help", "The boxes, or a click on a row or on a heat map's cell, choose points for the curves below. " +
    "Grey numbers are errors against the truth.");
}

function truthsTold() {
  const truths = Object.values(DATA.truths);
  if (truths.length > MOST_TRUTHS) return `${truths.length} truths, one for each of some points`;
  return truths.map((truth) => `truth: ${truth.label} (${truth.kind.replaceAll("_", " ")})`).join(", ");
}

function drawFailures() {
  byId("failures").hidden = !DATA.failed.length;
  if (!DATA.failed.length) return;
  const head = ["point", "id", "status", "reason"].map((text) => make("th", { class: "text", scope: "col" }, text));
  const rows = DATA.failed.map((row) => make("tr", {},
    make("td", { class: "long" }, DATA.points.name[row]), make("td", { class: "text" }, DATA.points.id[row]),
    make("td", { class: "text bad" }, DATA.points.status[row].replaceAll("_", " ")),
    make("td", { class: "long" }, DATA.points.reason[String(row)] || "")));
  byId("failure-table").replaceChildren(make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows));
}

function drawNotes() {
  const counts = new Map();
  DATA.points.notes.forEach((note) => { if (note !== null) counts.set(note, (counts.get(note) || 0) + 1); });
  const items = [...counts].map(([note, count]) => make("li", {}, `${count} of ${COUNT} points: ${DATA.notes[note].replaceAll("\n", "; ")}`));
  byId("note-list").replaceChildren(...items.slice(0, FIRST_NOTES));
  byId("more-notes").hidden = items.length <= FIRST_NOTES;
  show("more-notes-count", `${items.length - FIRST_NOTES} more`);
  byId("more-note-list").replaceChildren(...items.slice(FIRST_NOTES));
  byId("definitions").hidden = !DATA.definitions;
  show("definition-text", DATA.definitions);
  byId("notes").hidden = !items.length && !DATA.definitions;
}

function drawAll() {
  applyTheme();
  applyFilters();
  drawFilters();
  drawTable();
  drawChosenNotes();
  for (const draw of [drawHeatControls, drawCurveControls, drawErrorsControls, drawParallelControls]) draw();
  redraw();
}

function forPrint(on) {
  printing = on;
  applyTheme();
  for (const chart of charts.values()) chart.due = true;
  drawDue(on);
}

function main() {
  const start = startValues();
  startState(start);
  mendState(start);
  drawHead();
  drawFailures();
  drawNotes();
  byId("parallel").hidden = VARIED.length < 2;
  byId("heat").hidden = !VARIED.length;
  byId("curve").hidden = !VARIED.length;
  byId("errors").hidden = !Object.values(DATA.truths).some((truth) => truth.requests);
  byId("share").hidden = !SHARES.length;
  byId("heat-chart").setAttribute("aria-label", "Heat map: arrow keys move over the cells, Enter chooses the point");
  byId("heat-chart").addEventListener("keydown", heatKeys);
  addChart("heat-chart", drawHeat);
  addChart("curve-chart", drawCurve);
  addChart("cdf-chart", drawCdf);
  addChart("time-chart", drawTime);
  addChart("errors-chart", drawErrors);
  addChart("parallel-chart", drawParallel, true);
  addChart("share-chart", drawShare);
  drawAll();
  byId("skip").addEventListener("click", (event) => { event.preventDefault(); byId("points").focus(); });
  byId("print").addEventListener("click", () => window.print());
  byId("theme").addEventListener("click", () => {
    state.theme = isDark() ? "light" : "dark";
    writeHash();
    applyTheme();
    redraw();
  });
  byId("reset").addEventListener("click", () => {
    const { theme } = state;
    Object.assign(state, structuredClone(defaults), { theme });
    mendState(start);
    writeHash();
    drawAll();
  });
  window.addEventListener("hashchange", () => {
    if (location.hash.slice(1) === ownHash) return;
    readHash();
    mendState(start);
    drawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { applyTheme(); redraw(); });
  window.addEventListener("beforeprint", () => forPrint(true));
  window.addEventListener("afterprint", () => forPrint(false));
  performance.mark("servesweep-ready");
}

main();
