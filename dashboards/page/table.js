// The table of points: sortable, with the truth on top; its boxes choose points for the curves.

const PAGES = [25, 100, 500];
const MOST_CHOSEN = 12;
const MOST_TRUTHS = 4; // as rows of the table and lines of a chart; more stand beside their points

function errorName(name) {
  if (name === "makespan_ms") return "err_pct/makespan";
  return `err_pct/${name}`;
}

function columns() {
  const some = [
    { key: "rank", title: "rank", value: (row) => RANK[row] },
    ...VARIED.map((axis) => ({ key: `axis ${axis.name}`, title: axis.short, axis, value: (row) => axis.codes[row] })),
    { key: "blocks", title: DATA.blocks_title, value: (row) => (BLOCKS[row] < 0 ? NaN : BLOCKS[row]), truth: "kv/blocks" },
    ...state.columns.map((name) => ({
      key: name, title: titleOf(name), metric: name, value: (row) => metric(name)[row], truth: name,
    })),
    { key: "status", title: "status", text: true, value: (row) => DATA.points.status[row] },
  ];
  return some;
}

function sorted(rows, all) {
  const column = all.find((one) => one.key === state.sort) || all[0];
  const missing = (value) => value === null || Number.isNaN(value) || value === Infinity;
  return [...rows].sort((a, b) => {
    const [x, y] = [column.value(a), column.value(b)];
    if (missing(x) || missing(y)) return missing(x) - missing(y) || a - b;
    const order = typeof x === "string" ? x.localeCompare(y, "en") : x - y;
    return order * state.direction || a - b;
  });
}

function drawTable() {
  const all = columns();
  const rows = sorted(visible, all);
  const head = make("tr", {}, make("th", { class: "text" }, "curves"), all.map((column) => headCell(column)));
  const body = make("tbody", {});
  const keys = truthsOf(visible);
  if (keys.length <= MOST_TRUTHS) for (const key of keys) body.append(truthRow(DATA.truths[key], all));
  for (const row of rows.slice(0, state.rows)) body.append(pointRow(row, all));
  byId("table").replaceChildren(make("thead", {}, head), body);
  drawTableControls(rows.length);
}

function headCell(column) {
  const active = state.sort === column.key;
  const arrow = active ? (state.direction > 0 ? " ▲" : " ▼") : "";
  return make("th", {
    class: column.text || column.axis ? "text" : "",
    "aria-sort": active ? (state.direction > 0 ? "ascending" : "descending") : "none",
    scope: "col",
  }, make("button", {
    type: "button",
    title: column.axis ? column.axis.name : column.key,
    "data-sort": column.key,
    onclick: () => {
      state.direction = active ? -state.direction : 1;
      state.sort = column.key;
      writeHash();
      drawTable();
      byId("table").querySelector(`button[data-sort="${CSS.escape(column.key)}"]`).focus();
    },
  }, column.title.replaceAll("_", "_\u200b") + arrow));
}

function truthRow(truth, all) {
  const cells = all.map((column) => {
    const value = column.truth ? truthValue(truth, column.truth) : undefined;
    return make("td", {}, value === undefined ? "" : format(value));
  });
  const text = `truth: ${truth.label}`;
  return make("tr", { class: "truth" }, make("td", { class: "text", title: text }, text), cells);
}

function pointRow(row, all) {
  const chosen = state.chosen.includes(row);
  const box = make("input", {
    type: "checkbox", checked: chosen, "aria-label": `curves of ${DATA.points.name[row]}`,
    onclick: (event) => { event.stopPropagation(); choose(row); },
  });
  const cells = all.map((column) => {
    if (column.axis) {
      const text = label(valueOf(column.axis, row));
      return make("td", { class: "text", title: text }, text);
    }
    const value = column.value(row);
    if (column.text) return make("td", { class: value === "finished" ? "text" : "text bad" }, statusText(row));
    return make("td", { title: column.truth ? truthTold(column.truth, row) : null }, format(value),
      column.metric ? errorOf(column.metric, row) : null);
  });
  return make("tr", { class: chosen ? "row chosen" : "row", "data-row": row, onclick: () => choose(row) },
    make("td", { class: "text" }, box), cells);
}

function truthTold(name, row) {
  const value = truthValue(DATA.truths[truthKey(row)], name);
  return value === undefined ? null : `truth: ${format(value)}`;
}

function statusText(row) {
  const status = DATA.points.status[row].replaceAll("_", " ");
  return EQUALS[row] >= 0 ? `${status}, equals another` : status;
}

function errorOf(name, row) {
  const error = metric(errorName(name))[row];
  return Number.isNaN(error) ? null : make("span", { class: "error" }, percent(error));
}

function choose(row) {
  const at = state.chosen.indexOf(row);
  if (at >= 0) state.chosen.splice(at, 1);
  else state.chosen.push(row);
  if (state.chosen.length > MOST_CHOSEN) state.chosen.shift();
  writeHash();
  for (const line of byId("table").querySelectorAll("tr.row")) {
    const chosen = state.chosen.includes(Number(line.dataset.row));
    line.classList.toggle("chosen", chosen);
    line.querySelector("input").checked = chosen;
  }
  chosenChanged();
}

function chosenChanged() {
  drawChosenNotes();
  redraw("heat-chart", "cdf-chart", "time-chart", "errors-chart", "share-chart");
}

function drawTableControls(count) {
  const shown = Math.min(count, state.rows);
  const sizes = [...new Set([...PAGES, state.rows])].filter((size) => size < COUNT || size === state.rows)
    .sort((a, b) => a - b).map((size) => [size, `${size} rows`]).concat([[Number.MAX_SAFE_INTEGER, "all rows"]]);
  const others = [...METRICS.keys()].filter((name) => !state.columns.includes(name)).map((name) => [name, titleOf(name)]);
  const removable = state.columns.map((name) => [name, titleOf(name)]);
  const change = (columns) => { state.columns = columns; writeHash(); drawTable(); };
  replaceControls("table-controls",
    select("Show", sizes, state.rows, (value) => { state.rows = Number(value); writeHash(); drawTable(); }),
    select("Add a column", [["", "…"], ...others], "", (name) => name && change([...state.columns, name])),
    select("Take a column out", [["", "…"], ...removable], "",
      (name) => name && change(state.columns.filter((one) => one !== name))),
    make("button", { type: "button", onclick: () => { state.chosen = []; writeHash(); drawTable(); chosenChanged(); } }, "Choose none"),
    make("span", { class: "quiet" }, `${shown} of ${count} rows`),
  );
}
