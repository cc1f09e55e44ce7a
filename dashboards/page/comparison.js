// Two sweeps against each other.

const MOST_ROWS = 1000;
let sweep = null;
let values = {};

const COLUMNS = [
  ["name", "point", (i) => sweep.points[i].name],
  ["state", "state", (i) => sweep.points[i].state],
  ["a", "A", (i) => values.a[i]],
  ["b", "B", (i) => values.b[i]],
  ["delta", "B − A", (i) => values.b[i] - values.a[i]],
  ["relative", "B − A (%)", (i) => relative(i)],
];

function relative(i) {
  return values.a[i] === 0 ? (values.b[i] === 0 ? 0 : NaN) : ((values.b[i] - values.a[i]) / Math.abs(values.a[i])) * 100;
}

function chooseSweep() {
  sweep = DATA.sweeps[state.sweep] || DATA.sweeps[0];
  if (!own(sweep.metrics, state.metric)) state.metric = own(sweep.metrics, sweep.metric) ? sweep.metric : Object.keys(sweep.metrics)[0] ?? "";
  const none = sweep.points.map(() => NaN);
  const packed = own(sweep.metrics, state.metric);
  values = packed ? { a: unpack(packed[0]), b: unpack(packed[1]) } : { a: none, b: none };
  if (state.direction !== -1) state.direction = 1;
}

function drawHead() {
  show("name", DATA.name);
  show("verdict", sweep.sentence);
  const version = (side) => [side.servesweep && `servesweep ${side.servesweep}`, side.commit && `commit ${side.commit.slice(0, 12)}`]
    .filter((one) => one).join(", ");
  const only = [["A", DATA.only_a], ["B", DATA.only_b]].filter(([, names]) => names.length)
    .map(([side, names]) => `sweeps only in ${side}: ${names.join(", ")}`);
  show("facts", [`A: ${DATA.a} (${version(sweep.sides[0])})`, `B: ${DATA.b} (${version(sweep.sides[1])})`, ...only].join(" · "));
  const options = DATA.sweeps.map((one, i) => [i, one.name]);
  replaceControls("sweep-controls", options.length > 1 ? select("Sweep", options, state.sweep, (value) => {
    state.sweep = Number(value);
    changed();
  }) : []);
}

function drawBest() {
  const names = [...sweep.measures, "ttft_ms/mean", "tpot_ms/mean", "latency_ms/mean", "throughput/output_tokens_per_s"];
  const metrics = [...new Set(names)].filter((name) => own(sweep.metrics, name));
  const head = make("tr", {}, ["in", "point"].map((text) => make("th", { class: "text" }, text)), metrics.map((name) => make("th", {}, titleOf(name))));
  const rows = sweep.sides.flatMap((side, i) => side.best.map((point) => make("tr", {},
    make("td", { class: "text" }, "AB"[i]), make("td", { class: "long" }, point.name), metrics.map((name) => make("td", {}, format(own(point.metrics, name)))))));
  byId("best-table").replaceChildren(make("thead", {}, head), make("tbody", {}, rows));
}

function shownRows() {
  const words = state.find.toLowerCase().split(/\s+/);
  return sweep.points.map((_, i) => i).filter((i) => (!state.only || sweep.points[i].state === state.only)
    && words.every((word) => sweep.points[i].name.toLowerCase().includes(word)));
}

function sortedRows() {
  const [, , value] = COLUMNS.find(([key]) => key === state.sort) || COLUMNS[0];
  const missing = (one) => typeof one === "number" && Number.isNaN(one);
  return shownRows().sort((i, j) => {
    let [x, y] = [value(i), value(j)];
    if (missing(x) || missing(y)) return missing(x) - missing(y) || i - j;
    if (state.sort === "delta" || state.sort === "relative") [x, y] = [Math.abs(x), Math.abs(y)];
    return (typeof x === "string" ? x.localeCompare(y, "en") : x - y) * state.direction || i - j;
  });
}

function drawTable() {
  const rows = sortedRows();
  const head = COLUMNS.map(([key, title]) => {
    const active = state.sort === key;
    return make("th", { class: key === "name" || key === "state" ? "text" : "", scope: "col",
      "aria-sort": active ? (state.direction > 0 ? "ascending" : "descending") : "none" },
    make("button", { type: "button", "data-sort": key, onclick: () => {
      state.direction = active ? -state.direction : key === "name" || key === "state" ? 1 : -1;
      state.sort = key;
      writeHash();
      drawTable();
      byId("table").querySelector(`button[data-sort="${key}"]`).focus();
    } }, title + (active ? (state.direction > 0 ? " ▲" : " ▼") : "")));
  });
  const body = rows.slice(0, MOST_ROWS).map((i) => {
    const point = sweep.points[i];
    const [ofA, ofB] = point.of;
    const told = [point.same_id ? null : "other inputs or version", ofA > 1 ? `best of ${ofA} in A` : null, ofB > 1 ? `best of ${ofB} in B` : null,
      point.name === point.other ? null : `in B: ${point.other}`, ...point.reasons.map((reason, side) => reason && `${"AB"[side]}: ${reason}`)];
    const share = relative(i);
    return make("tr", {},
      make("td", { class: "long" }, point.name, make("span", { class: "error" }, told.filter((one) => one).join("; "))),
      make("td", { class: point.state.startsWith("fails") ? "text bad" : "text" }, point.state),
      make("td", {}, format(values.a[i])), make("td", {}, format(values.b[i])),
      make("td", {}, format(values.b[i] - values.a[i])), make("td", {}, Number.isNaN(share) ? "–" : percent(share)));
  });
  byId("table").replaceChildren(make("thead", {}, make("tr", {}, head)), make("tbody", {}, body));
  show("shown", `${Math.min(rows.length, MOST_ROWS)} of ${sweep.points.length} points in both`);
}

function drawControls() {
  const change = (key) => (value) => { state[key] = value; changed(); };
  const states = [...new Set(sweep.points.map((point) => point.state))].sort();
  replaceControls("against-controls",
    select("Metric", Object.keys(sweep.metrics).map((name) => [name, titleOf(name)]), state.metric, change("metric")),
    select("State", [["", "any"], ...states.map((one) => [one, one])], state.only, change("only")),
    make("label", {}, "Find by name", make("input", { type: "search", id: "find", value: state.find, oninput: (event) => {
      state.find = event.target.value;
      writeHash();
      drawTable();
      redraw();
    } })));
}

function drawAgainst(element) {
  ready(element);
  const rows = shownRows().filter((i) => !Number.isNaN(values.a[i]) && !Number.isNaN(values.b[i]));
  if (!rows.length) return empty(element, "No point that is shown has this metric in both.");
  const states = [...new Set(rows.map((i) => sweep.points[i].state))].sort();
  const all = rows.flatMap((i) => [values.a[i], values.b[i]]);
  const ends = [all.reduce((x, y) => Math.min(x, y)), all.reduce((x, y) => Math.max(x, y))];
  const traces = states.map((one, k) => {
    const some = rows.filter((i) => sweep.points[i].state === one);
    return {
      type: "scatter", mode: "markers", name: one, x: some.map((i) => values.a[i]), y: some.map((i) => values.b[i]),
      hoverinfo: "text", hovertext: some.map((i) => `${plain(sweep.points[i].name, 160)}<br>A ${format(values.a[i])}, B ${format(values.b[i])}`),
      marker: { color: lineLook(k).color, symbol: ["circle", "diamond", "square", "x", "cross"][k % 5], size: 8, opacity: 0.8 },
    };
  });
  const title = plain(titleOf(state.metric));
  plot(element, traces, layoutLook(440, {
    shapes: [{ type: "line", x0: ends[0], x1: ends[1], y0: ends[0], y1: ends[1], line: { color: colour("--quiet"), dash: "dot", width: 2 } }],
    xaxis: axisLook(`${title} in A`), yaxis: axisLook(`${title} in B`), showlegend: true,
  }));
}

function drawOnly() {
  const measures = [...new Set(sweep.measures)];
  const rows = [sweep.only_a, sweep.only_b].flatMap((points, side) => points.slice(0, MOST_ROWS).map((point) => make("tr", {},
    make("td", { class: "text" }, "AB"[side]), make("td", { class: "long" }, point.name), make("td", { class: "text" }, point.status),
    measures.map((name) => make("td", {}, name === sweep.measures[side] ? format(point.measure) : "")))));
  byId("only").hidden = !rows.length;
  const head = ["in", "point", "status", ...measures.map(titleOf)].map((text) => make("th", { class: "text" }, text));
  byId("only-table").replaceChildren(make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows));
}

function changed() {
  chooseSweep();
  writeHash();
  for (const draw of [applyTheme, drawHead, drawBest, drawControls, drawTable, drawOnly]) draw();
  redraw();
}

function main() {
  startState({ theme: "", sweep: 0, metric: DATA.sweeps[0].metric, only: "", find: "", sort: "relative", direction: -1 });
  addChart("against-chart", drawAgainst);
  changed();
  byId("print").addEventListener("click", () => window.print());
  byId("theme").addEventListener("click", () => { state.theme = isDark() ? "light" : "dark"; changed(); });
  byId("reset").addEventListener("click", () => { Object.assign(state, structuredClone(defaults)); changed(); });
  window.addEventListener("hashchange", () => {
    if (location.hash.slice(1) === ownHash) return;
    readHash();
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  for (const [name, on] of [["beforeprint", true], ["afterprint", false]]) {
    window.addEventListener(name, () => {
      printing = on;
      applyTheme();
      for (const chart of charts.values()) chart.due = true;
      drawDue(on);
    });
  }
  performance.mark("servesweep-ready");
}

main();
